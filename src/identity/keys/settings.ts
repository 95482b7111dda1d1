import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const keySettings = settings('identity', {
  KEY_MAX_TTL_DAYS: setting(integer(0), '0', 'Maximum lifetime of a project key; 0 disables the limit.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof keySettings> {}
}
