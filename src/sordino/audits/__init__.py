"""Audits: what an adversary can tell apart, whether draws are what the proof is about, and what a run gave away.

* Attacks. A case is a pair of worlds and a score (`sordino.mechanisms.cases`); `lower_bound` turns trials into a lower
  bound on epsilon. `catalogue` names everything that can be audited.
* Checks. A *subject* draws again and again from the real code, for inputs that the auditor chose, and knows the exact
  law of what must come out (`sordino.mechanisms.laws`). A *check* looks at these draws and returns a p-value and the
  smallest fault that it can see (`statistics`, `inspection`). A *fault* is a subject that was broken on purpose: the
  same checks must catch it (`faults`).
* Runs. `run_audit.audit` audits a finished run. It experiments on copies, and never touches the ledgers, the model or
  the rounds of the run itself.
"""
