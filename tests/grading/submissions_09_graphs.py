"""Answers to 09.6, 09.7 and 09.8: functions that are one graph, and functions that are not."""

import torch


# 09.6
def logs_tensor(x, weight, log):
    h = torch.relu(x @ weight)
    log.append((h == 0).float().mean())
    return h * 2


def logs_detached(x, weight, log):
    h = x.matmul(weight).clamp(min=0)
    y = 2 * h
    zeros = torch.count_nonzero(h == 0) / h.numel()
    log += [zeros.detach()]
    return y


def _share(h):
    return 1 - h.gt(0).to(torch.float32).mean()


def logs_by_helper(x, weight, log):
    h = torch.nn.functional.relu(torch.mm(x, weight))
    log.insert(len(log), _share(h))
    return torch.add(h, h)


def logging(what, factor=2):
    """The right function, but for what it logs."""

    def activated(x, weight, log):
        h = torch.relu(x @ weight)
        log.append(what(h))
        return h * factor

    return activated


def logs_item(x, weight, log):
    h = torch.relu(x @ weight)
    log.append((h == 0).float().mean().item())
    return h * 2


def logs_float(x, weight, log):
    h = torch.relu(x @ weight)
    log.append(float((h == 0).float().mean()))
    return h * 2


def logs_list(x, weight, log):
    h = torch.relu(x @ weight)
    log.extend((h == 0).float().mean().reshape(1).tolist())
    return h * 2


def logs_numpy(x, weight, log):
    h = torch.relu(x @ weight)
    log.append(float((h.numpy() == 0).mean()))
    return h * 2


def logs_and_prints(x, weight, log):
    h = torch.relu(x @ weight)
    share = (h == 0).float().mean()
    print("share", share)
    log.append(share)
    return h * 2


def logs_selected(x, weight, log):
    h = torch.relu(x @ weight)
    log.append(1 - h[h > 0].numel() / h.numel())
    return h * 2


@torch.compiler.disable
def _hidden(h, log):
    log.append((h == 0).float().mean().item())


def logs_hidden(x, weight, log):
    h = torch.relu(x @ weight)
    _hidden(h, log)
    return h * 2


def logs_broken(x, weight, log):
    h = torch.relu(x @ weight)
    log.append((h == 0).float().mean())
    torch._dynamo.graph_break()
    return h * 2


def logs_branching(x, weight, log):
    h = torch.relu(x @ weight)
    share = (h == 0).float().mean()
    if share > 0:
        log.append(share)
    else:
        log.append(0.0)
    return h * 2


def logs_nothing(x, weight, log):
    return torch.relu(x @ weight) * 2


def logs_twice(x, weight, log):
    log.append(0)
    return logs_tensor(x, weight, log)


def logs_returned(x, weight, log):
    h = torch.relu(x @ weight)
    return h * 2, (h == 0).float().mean()


def logs_in_place(x, weight, log):
    h = (x @ weight).relu_()
    x.mul_(2)
    log.append((h == 0).float().mean())
    return h * 2


# 09.7
def clips_clamped(g, limit):
    return g * (limit / torch.linalg.vector_norm(g).clamp(min=limit))


def clips_maximum(g, limit):
    norm = g.norm()
    return limit * g / torch.maximum(norm, torch.full_like(norm, limit))


def clips_safe_where(g, limit):
    norm = torch.linalg.vector_norm(g)
    safe = torch.where(norm > limit, norm, torch.ones_like(norm))
    return torch.where(norm > limit, g * (limit / safe), g)


def clips_with_eps(g, limit):
    return g * torch.clamp(limit / (torch.linalg.vector_norm(g) + 1e-6), max=1.0)


def clips_given(g, limit):
    norm = torch.linalg.vector_norm(g)
    if norm > limit:
        return g * (limit / norm)
    return g


def clips_where(g, limit):
    norm = torch.linalg.vector_norm(g)
    return g * torch.where(norm > limit, limit / norm, 1.0)


def clips_ratio(g, limit):
    return g * torch.clamp(limit / torch.linalg.vector_norm(g), max=1.0)


def clips_own_root(g, limit):
    return g * (limit / torch.clamp((g * g).sum().sqrt(), min=limit))


def clips_whole_where(g, limit):
    norm = torch.linalg.vector_norm(g)
    return torch.where(norm > limit, g / norm * limit, g)


def clips_always(g, limit):
    return g * (limit / torch.linalg.vector_norm(g).clamp(min=1e-6))


def clips_never(g, limit):
    return g.clone()


def clips_elements(g, limit):
    return g.clamp(-limit, limit)


def clips_to_one(g, limit):
    norm = torch.linalg.vector_norm(g)
    return torch.where(norm > limit, g / norm.clamp(min=limit), g)


def clips_upside_down(g, limit):
    return g * (torch.linalg.vector_norm(g) / limit)


def clips_squares(g, limit):
    return g * (limit / torch.clamp((g * g).sum(), min=limit))


def clips_detached(g, limit):
    return g * (limit / torch.clamp(torch.linalg.vector_norm(g.detach()), min=limit))


def clips_item(g, limit):
    return g * min(1.0, limit / max(torch.linalg.vector_norm(g).item(), limit))


def clips_no_gradient(g, limit):
    with torch.no_grad():
        return clips_clamped(g, limit)


def clips_in_place(g, limit):
    with torch.no_grad():
        g.mul_(limit / torch.clamp(torch.linalg.vector_norm(g), min=limit))
    return g * 1


def clips_loop(g, limit):
    while torch.linalg.vector_norm(g) > limit * 1.000001:
        g = g * (limit / torch.linalg.vector_norm(g))
    return g


# 09.8
RATES = [0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01]
KNOWN = torch.tensor(RATES)


def steps_inside(w, grad, step):
    return w - torch.tensor(RATES, device=w.device)[step] * grad


def steps_outside(w, grad, step):
    return torch.sub(w, KNOWN[step] * grad)


def steps_by_tensor(w, grad, step):
    return w - torch.tensor(RATES)[torch.tensor(step)] * grad


def steps_by_mask(w, grad, step):
    chosen = torch.arange(len(RATES)) == step
    return w - (KNOWN * chosen).sum() * grad


def steps_given(w, grad, step):
    return w - RATES[step] * grad


def steps_by_dict(w, grad, step):
    return w - dict(enumerate(RATES))[step] * grad


def steps_by_branches(w, grad, step):
    if step == 0:
        rate = 0.5
    elif step == 1:
        rate = 0.3
    elif step == 2:
        rate = 0.2
    elif step == 3:
        rate = 0.15
    elif step == 4:
        rate = 0.1
    else:
        rate = 0.05 if step == 5 else 0.02 if step == 6 else 0.01
    return w - rate * grad


def steps_by_loop(w, grad, step):
    rates = iter(RATES)
    for _ in range(step):
        next(rates)
    return w - next(rates) * grad


def steps_tensor_of_one(w, grad, step):
    return w - torch.tensor(RATES[step]) * grad


def steps_item(w, grad, step):
    return w - KNOWN[step].item() * grad


def steps_with(rate):
    """The right function, but for its rate."""
    return lambda w, grad, step: w - rate(step) * grad


def steps_in_place(w, grad, step):
    return w.sub_(KNOWN[step] * grad)


def steps_scale_grad(w, grad, step):
    return w - grad.mul_(KNOWN[step])


def steps_against(w, grad, step):
    return w + KNOWN[step] * grad


def steps_first(w, grad, step):
    return w - KNOWN[0] * grad


def steps_earlier(w, grad, step):
    return w - KNOWN[max(step - 1, 0)] * grad


@torch.compile
def logs_compiled(x, weight, log):
    h = torch.relu(x @ weight)
    log.append((h == 0).float().mean())
    return h * 2


def logs_where_asked(x, weight, log):
    """One graph while it is captured, and the log only when it is not."""
    if torch.compiler.is_compiling():
        return torch.relu(x @ weight) * 2
    return logs_item(x, weight, log)


def logs_as_configured(x, weight, log):
    """Let the compiler put the number into the graph."""
    torch._dynamo.config.capture_scalar_outputs = True
    return logs_item(x, weight, log)


class LogsWhenCalled:
    """An object in a function's place."""

    def __call__(self, x, weight, log):
        return logs_tensor(x, weight, log)


def endless_after_a_graph(x, weight, log):
    y = logs_tensor(x, weight, log)
    while torch.compiler.is_compiling() or log:
        pass
    return y


def logs_at_the_end(x, weight, log):
    y = torch.relu(x @ weight) * 2
    log.append(float((y == 0).sum()) / y.numel())
    return y
