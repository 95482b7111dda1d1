import { z } from 'zod'
import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const ingestionSettings = settings('content', {
  SYNC_INGESTION_MAX_BYTES: setting(
    z
      .string()
      .transform(value => (Number.isSafeInteger(Number(value)) && Number(value) > 0 ? Number(value) : 10_485_760)),
    '10485760',
    'Maximum size of a file ingested with `wait=true`. Invalid values fall back to the default.',
  ),
  INGESTION_MAX_TRIES: setting(
    integer(1, 10),
    '3',
    'Maximum attempts of an ingestion that fails for an unknown reason.',
  ),
  INGESTION_STALL_TIMEOUT_MS: setting(integer(1000), '300000', 'Time without progress after which an ingestion fails.'),
  INGESTION_QUEUE_TIMEOUT_MS: setting(integer(1000), '3600000', 'Maximum time an ingestion waits for a worker.'),
  CONVERSION_STALL_TIMEOUT_MS: setting(
    integer(1000),
    '1800000',
    'Maximum time to wait for the callback of a converter.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof ingestionSettings> {}
}
