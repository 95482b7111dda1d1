import { type CaseRow, caseKind } from '#automation/cases/model.ts'
import { actorOf } from '#automation/cases/timeline.ts'
import { checkStorage } from '#control/quotas/storage.ts'
import { equalsFilter, oneOf } from '#core/api/filters.ts'
import { isIdOf } from '#core/api/kind.ts'
import { type Context, type Operation, operation, result } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { startExport } from './build.ts'
import { mayExport } from './collect-snapshot.ts'
import { lockExecution } from './executions.ts'
import { EXPORT_STATUSES, ExportInput, exportKind, PlaybookExport, SUBJECT_TYPES } from './model.ts'

const tag = 'Exports'
const path = '/playbook-exports'
const exports = resource(exportKind, {
  path,
  tag,
  module: 'cases',
  param: 'export_id',
  noun: 'Export',
  nouns: 'Exports',
})

/**
 * Returns the case of a subject, locked against deletion.
 * @throws RESOURCE_NOT_FOUND if it does not exist or the caller may not export it
 */
async function requireExportableCase({
  tx,
  caller,
  project,
  body,
}: Pick<Context<any, ExportInput>, 'tx' | 'caller' | 'project' | 'body'>): Promise<CaseRow> {
  const { subject_type, subject_id: id } = body
  const isExecution = subject_type === 'playbook_execution'
  const ref = isExecution ? await lockExecution(tx, id) : { project_id: project, case_id: id }
  const about =
    ref && isIdOf(caseKind, ref.case_id) && (project === null || project === ref.project_id)
      ? await caseKind.reference(tx, ref.case_id, ref.project_id)
      : null
  return about && mayExport(caller, about, isExecution) ? about : raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

export const exportOperations: Operation[] = [
  operation({
    id: 'createExport',
    starts: { kind: 'playbook_export', field: 'id' },
    method: 'post',
    path,
    summary: 'Export a case or playbook execution',
    description:
      "Returns a queued export immediately. Linked records are read with the caller's permissions at the time the export is built; records that cannot be read are listed under `omitted`. The files are regular files of the project.",
    tag,
    action: 'cases:ExportCase',
    alsoActions: ['cases:GetCase', 'playbooks:GetExecution'],
    creates: exportKind,
    under: { kind: caseKind, field: 'subject_id' },
    body: ExportInput,
    answers: { 202: PlaybookExport },
    raises: ['RESOURCE_NOT_FOUND', 'QUOTA_STORAGE_EXCEEDED'],
    async run(context) {
      const { tx, services, caller, body } = context
      const about = await requireExportableCase(context)
      await checkStorage(services, about.project_id, 0, tx)
      const { subject_type, subject_id, formats } = body
      const { id: case_id, project_id } = about
      const requested_by = actorOf(caller)
      const row = await exportKind.insert(tx, { project_id, case_id, subject_type, subject_id, formats, requested_by })
      await startExport(tx, row, principalRecord(caller))
      return result(202, exportKind.present(row))
    },
  }),
  // playbook_exports_project serves the order; playbook_exports_subject serves the subject filter.
  exports.list({
    filters: {
      subject_type: oneOf('subject_type', SUBJECT_TYPES),
      subject_id: equalsFilter('subject_id'),
      status: oneOf('status', EXPORT_STATUSES),
    },
  }),
  exports.get(),
  exports.remove({ description: 'Deletes the export and its files.', action: 'cases:ExportCase' }),
]
