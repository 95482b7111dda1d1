import { flag, integer, setting, settings, type Values } from '#core/base/setting.ts'

export const credentialSettings = settings('identity', {
  PROVIDER_AMBIENT_CREDENTIALS: setting(
    flag,
    'false',
    "Whether bedrock and vertex providers may use the deployment's own credentials.",
  ),
})

export const providerSettings = settings('workers', {
  PROVIDER_MAX_RETRIES: setting(
    integer(0, 10),
    '7',
    'Maximum retries of a model call: two hold the slot of a worker, between the others a turn waits in the queue.',
  ),
  MODEL_CALL_TIMEOUT_MS: setting(integer(100), '600000', 'Timeout of a model call, up to the last byte.'),
  MODEL_STREAM_IDLE_MS: setting(
    integer(100),
    '120000',
    'Maximum silence of a model after the first byte of its answer.',
  ),
  MODEL_LISTING_TIMEOUT_MS: setting(integer(100), '15000', 'Timeout of a model listing.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof credentialSettings>, Values<typeof providerSettings> {}
}
