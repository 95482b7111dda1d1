import { integer, optional, setting, settings, type Values } from '#core/base/setting.ts'

export const userSettings = settings('identity', {
  ADMIN_USERNAME: setting(optional, '', 'Username of the first admin, created at boot if no user exists.'),
  ADMIN_PASSWORD: setting(optional, '', 'Password of the first admin.', { secret: true }),
  PASSWORD_MIN_LENGTH: setting(integer(1, 1024), '8', 'Minimum length of new passwords, in characters.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof userSettings> {}
}
