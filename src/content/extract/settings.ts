import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const extractSettings = settings('content', {
  INGESTION_PDF_PROCESSES: setting(
    integer(1, 100),
    '2',
    'PDFs read concurrently per worker, each in a process of up to 512 MiB; others wait.',
  ),
  INGESTION_MAX_PAGES: setting(integer(1), '5000', "Maximum pages of a PDF or of a converter's output."),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof extractSettings> {}
}
