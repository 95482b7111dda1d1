import { z } from 'zod'
import { list, setting, settings, type Values } from '../base/setting.ts'

/** Returns a key in base64, which platforms generate, as hex; other text unchanged. */
const asHex = (key: string): string =>
  /^[A-Za-z0-9+/]{43}=$/.test(key) ? Buffer.from(key, 'base64').toString('hex') : key

const hexKeys = list
  .transform(keys => keys.map(asHex))
  .pipe(z.array(z.string().regex(/^[0-9a-fA-F]{64}$/, 'must be 64 hex characters, or 32 bytes in base64')))

export const encryptionSettings = settings(
  'identity',
  {
    SECRETS_ENCRYPTION_KEY: setting(
      hexKeys,
      '',
      'AES-256-GCM key, 64 hex characters or 32 bytes in base64; outside production, default is a fixed development key.',
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
