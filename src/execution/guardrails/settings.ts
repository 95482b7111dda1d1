import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const guardrailContextSettings = settings('egress', {
  GUARDRAIL_CONTEXT_TIMEOUT_MS: setting(
    integer(100, 60_000),
    '5000',
    "Timeout of a call of a guardrail's context tool.",
  ),
  GUARDRAIL_CONTEXT_TTL_MS: setting(
    integer(0, 3_600_000),
    '5000',
    "Cache time of a context tool's response per principal; 0 disables caching.",
  ),
})

export const guardrailSettings = settings('control', {
  GUARDRAIL_EVALUATION_RETENTION_DAYS: setting(
    integer(0),
    '90',
    'Retention of guardrail evaluations; 0 disables expiry.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof guardrailContextSettings>, Values<typeof guardrailSettings> {}
}
