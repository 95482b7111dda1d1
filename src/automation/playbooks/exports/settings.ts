import { positiveOr, setting, settings, type Values, zeroOr } from '#core/base/setting.ts'

export const playbookExportSettings = settings('workers', {
  PLAYBOOK_EXPORT_TTL_DAYS: setting(zeroOr(30), '30', 'Retention of export files; 0 disables expiry.'),
  PLAYBOOK_EXPORT_LEASE_SECONDS: setting(
    positiveOr(300),
    '300',
    'Lease of an export in progress, renewed every quarter of it.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof playbookExportSettings> {}
}
