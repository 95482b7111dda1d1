/** A record with a view: the prefix of its IDs, and the path of the view below its project. */
type RecordView = { prefix: string; path: string }

/** Records with a view by their ID alone, by kind. */
export const RECORD_VIEWS: Record<string, RecordView> = {
  actor: { prefix: 'actor', path: 'actors' },
  agent: { prefix: 'agent', path: 'agents' },
  audit_entry: { prefix: 'audit', path: 'audit' },
  case: { prefix: 'case', path: 'cases' },
  conversation: { prefix: 'conv', path: 'conversations' },
  dataset: { prefix: 'dset', path: 'datasets' },
  document: { prefix: 'doc', path: 'documents' },
  eval: { prefix: 'eval', path: 'evals' },
  event: { prefix: 'evt', path: 'events' },
  file: { prefix: 'file', path: 'files' },
  formation: { prefix: 'form', path: 'formations' },
  generation: { prefix: 'gen', path: 'traces' },
  guardrail: { prefix: 'guard', path: 'guardrails' },
  memory_store: { prefix: 'mstore', path: 'memory' },
  orchestration: { prefix: 'orch', path: 'orchestrations' },
  orchestration_run: { prefix: 'orch_run', path: 'runs' },
  playbook: { prefix: 'pbk', path: 'playbooks' },
  policy: { prefix: 'pol', path: 'policies' },
  session: { prefix: 'sess', path: 'sessions' },
  tool: { prefix: 'tool', path: 'tools' },
  trace: { prefix: 'trace', path: 'traces' },
  trigger: { prefix: 'trg', path: 'triggers' },
  user: { prefix: 'user', path: 'users' },
  webhook: { prefix: 'wh', path: 'webhooks' },
  workflow: { prefix: 'wfl', path: 'workflows' },
}
