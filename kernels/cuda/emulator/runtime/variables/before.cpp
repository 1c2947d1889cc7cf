// Stands before the source when it is linked: see main.cpp.
extern "C" {
char emulated_data_first = 1, emulated_bss_first;
}
