"""White-box checks: do draws have the distribution that the proof is about, coordinate by coordinate?

A *subject* draws again and again from the real code, for inputs that the auditor chose, and knows the exact law of what
must come out (`laws`). A *check* looks at these draws and returns a p-value and the smallest fault that it can see
(`statistics`). A *fault* is a subject that was broken on purpose: the same checks must catch it (`faults`).
"""
