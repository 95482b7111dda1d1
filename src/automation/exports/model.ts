import { z } from 'zod'
import { fileKind } from '../../content/files/model.ts'
import { RecordedFailure } from '../../core/api/errors.ts'
import { type Kind, kind } from '../../core/api/kind.ts'
import { projectField, record } from '../../core/api/record.ts'
import type { Tx } from '../../core/db/writer.ts'
import { CasePrincipal } from '../cases/model.ts'

/** An export is a case, or one execution of a playbook, as files that stay as they were made. */

export const SUBJECT_TYPES = ['case', 'playbook_execution'] as const
export const EXPORT_FORMATS = ['json', 'markdown', 'html'] as const
export type ExportFormat = (typeof EXPORT_FORMATS)[number]
export const EXPORT_STATUSES = ['queued', 'running', 'completed', 'failed', 'expired'] as const

/** Something that the subject names and the export does not show. */
export const Omission = z
  .object({
    type: z.string().describe('Kind of record'),
    id: z.string(),
    reason: z.enum(['forbidden', 'not_found']).describe('Whether the requester may not read it, or it is gone'),
  })
  .meta({ id: 'PlaybookExportOmission' })
export type Omission = z.output<typeof Omission>

const ExportFile = z
  .object({
    format: z.enum(EXPORT_FORMATS).describe('Format of the file'),
    file_id: z.string().describe('A file of the project, downloaded as any other'),
    size_bytes: z.int().describe('Bytes'),
    sha256: z.string().describe('SHA-256 of the file, in hexadecimal'),
  })
  .meta({ id: 'PlaybookExportFile' })
export type ExportFile = z.output<typeof ExportFile>

const subject_type = z.enum(SUBJECT_TYPES).describe('What is exported')
const subject_id = z.string().min(1).max(255).describe('Its id')

export const PlaybookExport = record('PlaybookExport', {
  subject_type,
  subject_id,
  formats: z.array(z.enum(EXPORT_FORMATS)).describe('What files are made'),
  status: z.enum(EXPORT_STATUSES).describe('`expired` once its files were removed'),
  files: z.array(ExportFile).describe('Empty until it has completed'),
  omitted: z.array(Omission).describe('What the requester could not read when it was built'),
  error: RecordedFailure.nullable(),
  requested_by: CasePrincipal.describe('Who asked for it'),
  expires_at: z.iso.datetime().nullable().describe('When its files are removed'),
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
      .refine(formats => new Set(formats).size === formats.length, 'must name each format once')
      .default(['json', 'markdown'])
      .describe('Files to make: `json` for programs, `markdown` and `html` for people; default json and markdown'),
  })
  .meta({ id: 'PlaybookExportInput' })
export type ExportInput = z.output<typeof ExportInput>

/** Removes the files of an export that are still there; one that a document was made of stays with the document. */
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
