import { z } from 'zod'
import { CasePrincipal } from '#automation/cases/model.ts'
import { fileKind } from '#content/files/model.ts'
import { type Kind, kind } from '#core/api/kind.ts'
import { projectField, record } from '#core/api/record.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'

export const SUBJECT_TYPES = ['case', 'playbook_execution'] as const
const EXPORT_FORMATS = ['json', 'markdown', 'html'] as const
export type ExportFormat = (typeof EXPORT_FORMATS)[number]
export const EXPORT_STATUSES = ['queued', 'running', 'completed', 'failed', 'expired'] as const

/** Record that the subject refers to and the export does not contain. */
export const Omission = z
  .object({
    type: z.string().describe('Kind of record'),
    id: z.string(),
    reason: z
      .enum(['forbidden', 'not_found'])
      .describe('Reason: forbidden — not readable by the requester; not_found — deleted'),
  })
  .meta({ id: 'PlaybookExportOmission' })
export type Omission = z.output<typeof Omission>

const ExportFile = z
  .object({
    format: z.enum(EXPORT_FORMATS).describe('Format of the file'),
    file_id: z.string().describe('ID of the file in the project'),
    size_bytes: z.int().describe('Size of the file in bytes'),
    sha256: z.string().describe('SHA-256 of the file in hexadecimal'),
  })
  .meta({ id: 'PlaybookExportFile' })
export type ExportFile = z.output<typeof ExportFile>

const subject_type = z.enum(SUBJECT_TYPES).describe('Type of the exported resource')
const subject_id = z.string().min(1).max(255).describe('ID of the exported resource')

export const PlaybookExport = record('PlaybookExport', {
  subject_type,
  subject_id,
  formats: z.array(z.enum(EXPORT_FORMATS)).describe('Formats of the files'),
  status: z.enum(EXPORT_STATUSES).describe('Status of the export: expired — its files were removed'),
  files: z.array(ExportFile).describe('Files of the export. Empty until it has completed.'),
  omitted: z.array(Omission).describe('Records that the requester could not read when the export was built'),
  error: RecordedFailure.nullable(),
  requested_by: CasePrincipal.describe('Principal that requested the export'),
  expires_at: z.iso.datetime().nullable().describe('Time at which the files are removed. Null if they do not expire.'),
  completed_at: z.iso.datetime().nullable(),
})

export const ExportInput = z
  .strictObject({
    project_id: projectField,
    subject_type,
    subject_id,
    formats: z
      .array(z.enum(EXPORT_FORMATS))
      .min(1)
      .max(EXPORT_FORMATS.length)
      .refine(formats => new Set(formats).size === formats.length, 'must not contain duplicates')
      .default(['json', 'markdown'])
      .describe('Formats: json — machine-readable; markdown and html — for readers. Default json and markdown.'),
  })
  .meta({ id: 'PlaybookExportInput' })
export type ExportInput = z.output<typeof ExportInput>

/** Removes the remaining files of an export. A file that a document was created from remains. */
export async function removeFiles(tx: Tx, { files }: { files: readonly ExportFile[] }): Promise<void> {
  for (const { file_id } of files) {
    const file = await fileKind.find(tx, file_id, true)
    if (file && file.document_id === null) await fileKind.remove?.(tx, file)
  }
}

const ExportRow = PlaybookExport.extend({ case_id: z.string() })
export type ExportRow = z.output<typeof ExportRow>

export const exportKind: Kind<ExportRow, 'completed' | 'failed'> = kind({
  name: 'playbook_export',
  prefix: 'pbk_exp',
  table: 'playbook_exports',
  countKept: true,
  references: [{ kind: 'case', column: 'case_id', on_delete: 'cascade' }],
  record: PlaybookExport,
  hidden: { case_id: z.string() },
  events: ['completed', 'failed'],
  async remove(tx: Tx, row: ExportRow) {
    await removeFiles(tx, row)
    await exportKind.delete(tx, row.id)
  },
})
