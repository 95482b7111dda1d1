import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const datasetSettings = settings('workers', {
  DATASET_MAX_ITEMS: setting(integer(1, 1_000_000), '10000', 'Maximum items per dataset.'),
  DATASET_MAX_BYTES: setting(
    integer(1024, 1_099_511_627_776),
    '268435456',
    'Maximum total size of the items of a dataset, which an eval run copies in one transaction.',
  ),
  DATASET_IMPORT_MAX_BYTES: setting(
    integer(1024, 10_737_418_240),
    '104857600',
    'Maximum size of an imported dataset file.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof datasetSettings> {}
}
