/**
 * Types of nodes in the order of the palette: the fields that the form of a node shows first, the fields of its result that
 * expressions read, and the values with which a node begins.
 */
export const NODE_TYPES = {
  agent: { fields: ['agent_id', 'prompt', 'output_schema'], result: ['content'] },
  tool: { fields: ['tool_id', 'operation_id'], result: [] },
  condition: { fields: ['expression'], result: ['label'] },
  transform: { fields: ['expression'], result: ['result'] },
  human: { fields: ['prompt', 'options', 'expires_in'], result: [] },
  approval: {
    fields: ['tool_id', 'arguments', 'reasoning', 'evidence', 'predicted_impact', 'instructions', 'expires_in'],
    result: [],
  },
  knowledge: { fields: ['memory_store_ids'], result: ['results'] },
  memory_write: { fields: ['memory_store_id'], result: ['action', 'memory_entry_id'] },
  sub_orchestration: { fields: ['orchestration_id', 'context_keys'], result: [] },
  loop: {
    fields: ['orchestration_id', 'collection', 'item_variable', 'parallelism', 'max_iterations', 'context_keys'],
    result: ['results'],
  },
  poll: {
    fields: ['tool_id', 'operation_id', 'exit_condition', 'interval', 'max_iterations', 'fail_on_timeout'],
    result: ['result', 'attempts', 'condition_met', 'timed_out'],
    start: { interval: '30s' },
  },
  delay: { fields: ['duration', 'until'], result: ['waited'], start: { duration: '1m' } },
  webhook: { fields: ['mode', 'expires_in'], result: [] },
  emit_event: { fields: ['event_type'], result: ['emitted', 'event_type', 'event_id'] },
} as const satisfies Record<
  string,
  { fields: readonly string[]; result: readonly string[]; start?: Record<string, unknown> }
>

export type NodeTypeName = keyof typeof NODE_TYPES

/** Types whose attempts have a time limit. */
export const TIMED: readonly string[] = [
  'agent',
  'tool',
  'poll',
  'knowledge',
  'memory_write',
  'loop',
  'sub_orchestration',
]

/** Fields that nodes of every type have. */
export const COMMON_FIELDS = [
  'input_mapping',
  'state_mapping',
  'on_error',
  'retry.max_attempts',
  'retry.backoff.strategy',
  'retry.backoff.delay_ms',
  'retry.backoff.max_delay_ms',
] as const
