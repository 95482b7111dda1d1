import { kinds } from '../api/kind.ts'
import type { Operation } from '../api/operation.ts'
import { eventNames, eventTypes } from '../db/events.ts'
import type { Catalogue } from './decide.ts'

export type ActionEntry = {
  action: string
  description: string
  resource_type: string | null
  gate: string
  operation_ids: string[]
}

/** Actions that policies may name although no route asks for them (identity, 8). */
const ROUTELESS: ActionEntry[] = [
  {
    action: 'quotas:MonitorBreach',
    description: 'Written to the audit log when a monitored quota is breached',
    resource_type: 'quota',
    gate: 'policy',
    operation_ids: [],
  },
]

/** The action catalogue, made from the operations: module -> actions, in the order of the table of contents. */
export function actionCatalogue(operations: readonly Operation[]): { module: string; actions: ActionEntry[] }[] {
  const modules = new Map<string, Map<string, ActionEntry>>()
  const add = (entry: ActionEntry) => {
    const module = entry.action.split(':')[0]
    let actions = modules.get(module)
    if (!actions) {
      actions = new Map()
      modules.set(module, actions)
    }
    const known = actions.get(entry.action)
    if (known) known.operation_ids.push(...entry.operation_ids)
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
  for (const entry of ROUTELESS) add({ ...entry, operation_ids: [] })
  return [...modules].map(([module, actions]) => ({ module, actions: [...actions.values()] }))
}

/** What policy documents are checked against. Actions of the admin and owner gates are named too: unscoped admin keys with policies use them. */
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
      // Types without rows are known by the operations that ask for them.
      ...operations.flatMap(({ kind }) => (kind && !kind.authorize ? [kind.name] : [])),
      'audit_entry',
      'event',
    ]),
    eventNames: [...eventNames],
    eventTypes: new Set(eventTypes),
  }
}
