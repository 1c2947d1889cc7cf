// Stands after the source when it is linked: see main.cpp.
extern "C" {
char emulated_data_last = 1, emulated_bss_last;
}
