import { integer, setting, settings, type Values } from '../base/setting.ts'

export const idempotencySettings = settings('process', {
  IDEMPOTENCY_CREDENTIAL_MAX_BYTES: setting(
    integer(1),
    '1073741824',
    'Maximum bytes of the responses stored for the Idempotency-Keys of a credential; above it, responses older than an hour are deleted, then new keys are refused.',
  ),
  IDEMPOTENCY_PROJECT_MAX_BYTES: setting(
    integer(1),
    '4294967296',
    'Maximum bytes of the responses stored for the Idempotency-Keys of a project, as for a credential; it concerns only credentials above their share of it.',
  ),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof idempotencySettings> {}
}
