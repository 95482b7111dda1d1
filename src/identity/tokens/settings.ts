import { randomBytes } from 'node:crypto'
import { derived, optional, setting, settings, type Values } from '#core/base/setting.ts'

export const tokenSettings = settings(
  'identity',
  {
    JWT_SECRET: setting(
      derived(optional),
      '',
      'Secret that signs tokens; at least 32 bytes in production, otherwise random per boot.',
      { production: true, secret: true },
    ),
    JWT_SECRET_PREVIOUS: setting(optional, '', 'Previous secret, which verifies but does not sign tokens.', {
      secret: true,
    }),
  },
  (config, problem) => {
    if (config.production && config.JWT_SECRET && Buffer.byteLength(config.JWT_SECRET) < 32)
      problem('JWT_SECRET', 'must be at least 32 bytes in production')
    config.JWT_SECRET ??= randomBytes(32).toString('base64url')
  },
)

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof tokenSettings> {}
}
