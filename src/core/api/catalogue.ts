import { declarations } from '../base/declarations.ts'
import type { Catalogue } from '../iam/policy.ts'
import { eventNames, eventTypes } from '../writes/events.ts'
import { kinds } from './kind.ts'
import type { Operation } from './operation.ts'

export type ActionEntry = {
  action: string
  description: string
  resource_type: string | null
  gate: string
  operation_ids: string[]
}

/** An action for policies that is not the main action of an operation. */
export type PolicyAction = Omit<ActionEntry, 'gate' | 'operation_ids'>

export const policyActions = declarations<PolicyAction>('policy action', ({ action }) => action)

/** Resource types that policies may name although no kind and no operation has them. */
export const policyTypes = declarations<string>('policy type', type => type)

/** Returns the action catalogue of operations: actions by module, in module order. */
export function actionCatalogue(operations: readonly Operation[]): { module: string; actions: ActionEntry[] }[] {
  const modules = new Map<string, Map<string, ActionEntry>>()
  const add = (entry: ActionEntry) => {
    const module = entry.action.split(':')[0]
    let actions = modules.get(module)
    if (!actions) {
      actions = new Map()
      modules.set(module, actions)
    }
    const existing = actions.get(entry.action)
    if (existing) existing.operation_ids.push(...entry.operation_ids)
    else actions.set(entry.action, entry)
  }
  for (const operation of operations) {
    if (!operation.action) continue
    add({
      action: operation.action,
      description: operation.summary,
      resource_type: operation.kind?.name ?? null,
      gate: operation.gate,
      operation_ids: [operation.id],
    })
  }
  for (const entry of policyActions.all()) add({ ...entry, gate: 'policy', operation_ids: [] })
  return [...modules].map(([module, actions]) => ({ module, actions: [...actions.values()] }))
}

/**
 * Returns the catalogue for the validation of policy documents. Includes actions of the admin and owner gates, which apply to
 * unscoped admin keys with policies.
 */
export function policyCatalogue(operations: readonly Operation[]): Catalogue {
  const actions = new Map<string, Set<string>>()
  for (const { module, actions: entries } of actionCatalogue(operations))
    actions.set(module, new Set(entries.map(entry => entry.action.split(':')[1])))
  return {
    actions,
    types: new Set([
      ...kinds
        .all()
        .filter(kind => !kind.authorize)
        .map(kind => kind.name),
      // Types without rows are only declared by operations.
      ...operations.flatMap(({ kind }) => (kind && !kind.authorize ? [kind.name] : [])),
      ...policyTypes.all(),
    ]),
    eventNames: eventNames(),
    eventTypes: new Set(eventTypes.all().map(({ resource_type }) => resource_type)),
  }
}
