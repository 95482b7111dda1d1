import { setTimeout as sleep } from 'node:timers/promises'
import { requireReferences } from '#core/api/references.ts'
import { AppError, type Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { isLockTimeout, isWaitedFor } from '#core/db/lock-waits.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { newTrackedRow } from '../records/store.ts'
import { type ExpressionMeaning, expressionsIn, type TemplateScope } from '../template/expressions.ts'
import { createRefusalProblems, homeOfKind, operationArguments } from '../types/built-in.ts'
import type { BuiltInType } from '../types/model.ts'
import { createResource, isAppliedOutside, type ResourceWriter, updateResource } from './apply.ts'
import { mayCall, readParents, stepCalls } from './calls.ts'
import { type CompiledTemplate, type DeclaredResource, withoutDeferred } from './compile.ts'
import { importProblem, resolveImports } from './imports.ts'
import { findLive } from './live.ts'
import { templateScope } from './plan.ts'
import { type ResourceStep, stepFor } from './step.ts'

/** Rehearsals: changes that are tried in a transaction that is rolled back. */

class RehearsalEnded extends Error {}

/** Runs `work` in a transaction of `write` that is rolled back. */
export async function rehearse(
  write: (work: (tx: Tx) => Promise<never>) => Promise<unknown>,
  work: (tx: Tx) => Promise<void>,
): Promise<void> {
  try {
    await write(async tx => {
      await work(tx)
      throw new RehearsalEnded()
    })
  } catch (error) {
    if (!(error instanceof RehearsalEnded)) throw error
  }
}

/** Time after which a rehearsal tries no further resources. */
const MAX_REHEARSAL_MS = 5000

/**
 * Until its end a rehearsal locks the rows that its creates reference. It ends early when another transaction waits for
 * one of them, and is repeated for those that were not tried; it waits for locks of others no longer than this itself.
 */
const LOCK_CHECK_MS = 100
const LOCK_WAIT_MS = 250
const MAX_RUNS = 3
const PAUSE_MS = 100

/** What the project does to a template: problems, and resources that were not tried. */
export type RehearsedCreates = { problems: Problem[]; warnings: Problem[] }

/**
 * Tries the creates of a template for a new formation of a project: references, names, quotas and all that a deploy would
 * find in the project. Resources are tried by the permissions of the caller, in order, each with the IDs of the earlier ones.
 */
export async function rehearseCreates(
  services: Services,
  caller: Caller,
  projectId: string,
  compiled: CompiledTemplate,
  signal: AbortSignal,
): Promise<RehearsedCreates> {
  const { pool } = services
  const imports = await resolveImports(pool, caller, projectId, compiled)
  // Refusals of creates may report values that the caller may not read.
  if (imports.denied.length > 0) return { problems: imports.denied.map(importProblem), warnings: [] }
  const writer: ResourceWriter = {
    services,
    caller: { ...caller, project_id: projectId },
    unbound: caller,
    projectId,
    signal,
    once: new Map(),
  }
  const end = performance.now() + MAX_REHEARSAL_MS
  for (let run = 1; ; run++) {
    const { isInterrupted, ...found } = await rehearseOnce(writer, compiled, imports.values, end)
    if (!isInterrupted || run === MAX_RUNS || performance.now() > end) return found
    await sleep(PAUSE_MS, undefined, { signal })
  }
}

/** Tries the creates in one transaction. `isInterrupted`: whether another transaction had to wait for it. */
async function rehearseOnce(
  writer: ResourceWriter,
  compiled: CompiledTemplate,
  imported: Awaited<ReturnType<typeof resolveImports>>['values'],
  end: number,
): Promise<RehearsedCreates & { isInterrupted: boolean }> {
  const { services, signal } = writer
  const found = { problems: [] as Problem[], warnings: [] as Problem[], isInterrupted: false }
  await rehearse(
    work => services.write(work),
    async tx => {
      // The transaction may be repeated.
      found.problems.length = 0
      found.warnings.length = 0
      found.isInterrupted = false
      await setForTransaction(tx, { lock_timeout: `${LOCK_WAIT_MS}ms` })
      let checkAt = performance.now() + LOCK_CHECK_MS
      const ids = new Map<string, ExpressionMeaning>()
      const scope = templateScope(compiled, imported, name => ids.get(name) ?? 'unknown', 'unknown')
      const attempt = async (declared: DeclaredResource, type: BuiltInType, isDeferred: boolean): Promise<void> => {
        signal.throwIfAborted()
        const { logical_id } = declared
        const at = `resources.${logical_id}`
        const leave = (reason: string): void => {
          found.warnings.push({ code: 'UNCHECKED', path: at, message: `not checked against the project: ${reason}` })
        }
        if (homeOfKind(services, type.kind)) return leave('it is made in the cell home')
        const made = ids.get(logical_id)
        const step = isDeferred
          ? await deferredStep(tx, writer, declared, type, { id: typeof made === 'object' ? made.text : null, scope })
          : await stepFor(services, withoutDeferred(declared), null, null, scope)
        // Depends on a value that exists only during the deploy.
        if (!step || step.problems.length > 0 || expressionsIn(step.desired).length > 0) return
        if (!found.isInterrupted && performance.now() > checkAt) {
          found.isInterrupted = await isWaitedFor(tx)
          checkAt = performance.now() + LOCK_CHECK_MS
        }
        if (found.isInterrupted) return leave('other requests need the same resources')
        const denied = await deniedAction(tx, writer, step)
        if (denied !== null || performance.now() > end)
          return leave(denied === null ? 'the check took too long' : `${denied} is not permitted`)
        try {
          const id = await (isDeferred ? tryUpdate(tx, writer, step) : tryCreate(tx, writer, step, type))
          if (id !== null) ids.set(logical_id, { text: id })
        } catch (error) {
          if (isLockTimeout(error)) return leave('another request has locked resources that it needs')
          if (!(error instanceof AppError) || error.status >= 500) throw error
          found.problems.push(...createRefusalProblems(type, error, step.desired, `${at}.properties`))
        }
      }
      for (const declared of compiled.declared)
        if (!declared.type.registered) await attempt(declared, declared.type, false)
      for (const declared of compiled.declared)
        if (!declared.type.registered && declared.deferred.size > 0) await attempt(declared, declared.type, true)
    },
  )
  return found
}

/** Returns the step that sets the deferred properties of a resource that was created; null if it was not. */
async function deferredStep(
  tx: Tx,
  { services, projectId }: ResourceWriter,
  declared: DeclaredResource,
  type: BuiltInType,
  { id, scope }: { id: string | null; scope: TemplateScope },
): Promise<ResourceStep | null> {
  const live = id === null ? null : await findLive(services, tx, type, { id, projectId })
  if (!live) return null
  const { logical_id, retain, prevent_destroy } = declared
  const row = { ...newTrackedRow, id: '', logical_id, resource_type: type.name, position: 0, retain, prevent_destroy }
  return stepFor(services, declared, { ...row, physical_resource_id: id }, live, scope)
}

/** Returns the first action of a create that the caller is not allowed; null if it may be tried. */
async function deniedAction(
  tx: Tx,
  { unbound, projectId }: ResourceWriter,
  step: ResourceStep,
): Promise<string | null> {
  const calls = stepCalls(step)
  const parents = await readParents(tx, calls, projectId)
  const denied = calls.find(call => !mayCall(unbound, call, parents, projectId))
  return denied ? (denied.operation.action as string) : null
}

/** Creates a resource. Returns its ID; null for a type whose create opens its own transactions: only references are checked. */
async function tryCreate(
  tx: Tx,
  writer: ResourceWriter,
  step: ResourceStep,
  type: BuiltInType,
): Promise<string | null> {
  if (!isAppliedOutside(writer.services, step)) return (await createResource(writer, step, { tx, key: '' })).id
  await tx.nested(nested =>
    requireReferences(nested, type.kind, writer.projectId, operationArguments(type, step.desired)),
  )
  return null
}

/** Updates a resource. */
async function tryUpdate(tx: Tx, writer: ResourceWriter, { tracked, ...step }: ResourceStep): Promise<string | null> {
  if (tracked === null || step.action !== 'update' || isAppliedOutside(writer.services, step)) return null
  return (await updateResource(writer, { ...step, tracked }, { tx, key: '' })).id
}
