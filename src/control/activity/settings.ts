import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const activitySettings = settings('control', {
  ACTIVITY_RETENTION_DAYS: setting(integer(0), '0', 'Retention of activity entries; 0 disables expiry.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof activitySettings> {}
}
