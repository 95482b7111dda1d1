import { raiseInvalid } from '../../core/api/errors.ts'
import type { Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireReferences } from '../../core/api/references.ts'
import type { ExistingRow } from '../../core/api/resource.ts'
import { requirePlaybook } from './change.ts'
import { caseExecutions } from './executions.ts'
import { type CaseInput, type CaseRow, caseKind } from './model.ts'
import { allocateNumber } from './numbers.ts'
import { caseOfExternalId, lockExternalId } from './store.ts'
import { actorOf, appendTimeline, byCaller } from './timeline.ts'

/** Adds a case, or finds the one of the project with the external id and leaves it as it is. Emits nothing. */
async function obtainCase(
  { tx, services }: Pick<CaseCreation, 'tx' | 'services'>,
  values: Values<CaseRow> & { project_id: string },
): Promise<CaseRow | ExistingRow<CaseRow>> {
  const { project_id, external_id } = values
  if (external_id != null) {
    const found = await caseOfExternalId(tx, project_id, external_id)
    if (found) return { existing: found }
    // Whoever makes the same case at once waits here for the other's commit.
    await lockExternalId(tx, project_id, external_id)
    const meanwhile = await caseOfExternalId(tx, project_id, external_id)
    if (meanwhile) return { existing: meanwhile }
  }
  return caseKind.insert(tx, { ...values, number: await allocateNumber(tx, services, project_id) })
}

/** What makes a case, in whose name, in a transaction. */
export type CaseCreation = Pick<Context, 'tx' | 'services' | 'caller' | 'allow'> & { project: string }

/**
 * Makes a case, or finds the one with its external id; with `start_execution` an execution of its playbook is started in the
 * same transaction, unless the case was there.
 * @throws ACTOR_NOT_FOUND, RESOURCE_NOT_FOUND, VALIDATION_FAILED, and what refuses the start of an execution
 */
export async function createCase(
  context: CaseCreation,
  { project_id: _named, start_execution = false, input, ...given }: CaseInput,
): Promise<CaseRow | ExistingRow<CaseRow>> {
  const { tx, services, caller, project } = context
  if (input !== undefined && !start_execution)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'input', message: 'goes with start_execution alone' })
  if (start_execution && given.playbook_id == null)
    raiseInvalid({ code: 'REQUIRED', path: 'playbook_id', message: 'is what start_execution needs' })
  await requireReferences(tx, caseKind, project, given)
  await requirePlaybook(tx, project, given.playbook_id)
  const made = await obtainCase({ tx, services }, { ...given, project_id: project, created_by: actorOf(caller) })
  if ('existing' in made) return made
  tx.emit(caseKind, 'created', made)
  const { title, priority, external_id } = made
  appendTimeline(tx, made, byCaller(caller), [{ kind: 'created', data: { title, priority, external_id } }])
  if (!start_execution) return made
  const [executions] = caseExecutions.all()
  return executions.start(context, made, input ?? {})
}
