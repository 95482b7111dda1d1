import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const generationSettings = settings('workers', {
  GENERATION_LEASE_SECONDS: setting(integer(2), '60', 'Lease of a turn, renewed every third of it.'),
  GENERATION_SWEEP_SECONDS: setting(integer(1), '30', 'Polling interval for turns without a message.'),
  GENERATION_MAX_SECONDS: setting(integer(1), '1800', 'Maximum running time of a turn segment.'),
  GENERATION_TOOL_CONCURRENCY: setting(integer(1, 64), '8', 'Tool calls executed concurrently per step of a turn.'),
  GENERATION_TOOL_RESULT_MAX_BYTES: setting(
    integer(1024),
    '1048576',
    'Maximum size of a tool result in a turn; a call with a larger result fails.',
  ),
  GENERATION_ACTION_TTL_SECONDS: setting(
    integer(0),
    '604800',
    'Time after which a turn that waits for its client fails; 0 disables expiry.',
  ),
  AGENT_MAX_CALL_DEPTH: setting(integer(0), '10', 'Default and maximum of max_call_depth.'),
})

export const recallSettings = settings('content', {
  KNOWLEDGE_INJECTION_MAX_CHARS: setting(integer(1000), '20000', 'Maximum characters of recalled knowledge per turn.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof generationSettings>, Values<typeof recallSettings> {}
}
