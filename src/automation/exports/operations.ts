import { checkStorage } from '../../control/quotas/storage.ts'
import { raise } from '../../core/api/errors.ts'
import { equalsFilter, oneOf } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { type Context, type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { type CaseRow, caseKind } from '../cases/model.ts'
import { actorOf } from '../cases/timeline.ts'
import { mayExport } from './collect-snapshot.ts'
import { exportedExecutions } from './executions.ts'
import { EXPORT_STATUSES, ExportInput, exportKind, PlaybookExport, SUBJECT_TYPES } from './model.ts'
import { exportQueue } from './queue.ts'
import { insertExportWork } from './store.ts'

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

/** The case of a subject that the caller may export, kept until the transaction ends. Raises RESOURCE_NOT_FOUND. */
async function caseOf({
  tx,
  caller,
  project,
  body,
}: Pick<Context<any, ExportInput>, 'tx' | 'caller' | 'project' | 'body'>): Promise<CaseRow> {
  const { subject_type, subject_id: id } = body
  const execution = subject_type === 'playbook_execution'
  const named = execution ? await exportedExecutions.only()?.reference(tx, id) : { project_id: project, case_id: id }
  const about =
    named && isIdOf(caseKind, named.case_id) && (project === null || project === named.project_id)
      ? await caseKind.reference(tx, named.case_id, named.project_id)
      : null
  return about && mayExport(caller, about, execution) ? about : raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

export const exportOperations: Operation[] = [
  operation({
    id: 'createExport',
    starts: { kind: 'playbook_export', field: 'id' },
    method: 'post',
    path,
    summary: 'Export a case, or an execution of a playbook, as files',
    description:
      'Answers at once with a queued export. Linked records are read with the rights of the caller as they are when it is built; what may not be read is named under `omitted`. The files are ordinary files of the project.',
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
      const about = await caseOf(context)
      await checkStorage(services, about.project_id, 0, tx)
      const { subject_type, subject_id, formats } = body
      const { id: case_id, project_id } = about
      const requested_by = actorOf(caller)
      const row = await exportKind.insert(tx, { project_id, case_id, subject_type, subject_id, formats, requested_by })
      const attempt_id = newId('pbk_exp_att')
      await insertExportWork(tx, row.id, attempt_id, principalRecord(caller))
      tx.send(exportQueue, { export_id: row.id, attempt_id, project_id })
      return result(202, exportKind.present(row))
    },
  }),
  // playbook_exports_project serves the order; playbook_exports_subject the filter by subject.
  exports.list({
    filters: {
      subject_type: oneOf('subject_type', SUBJECT_TYPES),
      subject_id: equalsFilter('subject_id'),
      status: oneOf('status', EXPORT_STATUSES),
    },
  }),
  exports.get(),
  exports.remove({ description: 'Its files are deleted with it.', action: 'cases:ExportCase' }),
]
