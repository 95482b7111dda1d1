import { flag, integer, setting, settings, type Values } from '../base/setting.ts'

export const migrationSettings = settings('database', {
  AUTO_MIGRATE: setting(flag, 'true', 'Whether a process migrates at boot, under an advisory lock.'),
  MIGRATION_LOCK_TIMEOUT_MS: setting(
    integer(0),
    '600000',
    'Maximum time a migration waits for another one, and for locks of tables.',
  ),
})

export const queueSettings = settings('workers', {
  JOB_RETENTION_DAYS: setting(integer(1), '7', 'Retention of finished jobs.'),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof migrationSettings>, Values<typeof queueSettings> {}
}
