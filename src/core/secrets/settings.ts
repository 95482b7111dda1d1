import { z } from 'zod'
import { list, setting, settings, type Values } from '../base/setting.ts'

const hexKeys = list.pipe(z.array(z.string().regex(/^[0-9a-fA-F]{64}$/, 'must be 64 hex characters')))

export const encryptionSettings = settings(
  'identity',
  {
    SECRETS_ENCRYPTION_KEY: setting(
      hexKeys,
      '',
      'AES-256-GCM key, 64 hex characters; outside production, default is a fixed development key.',
      { production: true, secret: true },
    ),
    SECRETS_ENCRYPTION_KEY_PREVIOUS: setting(hexKeys, '', 'Previous keys, comma-separated, used only to decrypt.', {
      secret: true,
    }),
  },
  (config, problem) => {
    if (config.SECRETS_ENCRYPTION_KEY?.length > 1)
      problem('SECRETS_ENCRYPTION_KEY', 'must be a single key; set older keys in SECRETS_ENCRYPTION_KEY_PREVIOUS')
  },
)

declare module '../base/config.ts' {
  interface Config extends Values<typeof encryptionSettings> {}
}
