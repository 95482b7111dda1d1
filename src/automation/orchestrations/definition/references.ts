import { grantSourceOf } from '#core/api/grants.ts'
import { isIdOf, type KindRow, kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import type { Problem } from '#core/base/errors.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'
import type { Node } from './definition.ts'
import { type Field, NODE_FIELDS } from './fields.ts'
import { MAX_FINDINGS } from './validate.ts'

/** Kinds of the resources that node fields reference. */
const KINDS = {
  agent_id: 'agent',
  tool_id: 'tool',
  memory_store_id: 'memory_store',
  memory_store_ids: 'memory_store',
  orchestration_id: 'orchestration',
} as const

/**
 * Returns warnings for references to resources that the project neither owns nor has a share of. They are warnings
 * because runs resolve references again. One statement per kind.
 */
export async function missingReferences(db: Queryable, project: string, nodes: readonly Node[]): Promise<Problem[]> {
  const references = nodes.flatMap(referencesOf)
  const found = new Set<string>()
  for (const [name, ofKind] of Map.groupBy(references, ({ kind }) => kind))
    for (const id of await listAccessibleIds(
      db,
      name,
      project,
      ofKind.map(({ id }) => id),
    ))
      found.add(id)
  return references
    .filter(({ id }) => !found.has(id))
    .slice(0, MAX_FINDINGS)
    .map(({ id, path }) => ({
      code: 'REFERENCE_NOT_FOUND',
      path,
      message: `does not exist in this project: ${truncateChars(id, 200)}`,
    }))
}

type Reference = { kind: string; id: string; path: string }

function referencesOf(node: Node, index: number): Reference[] {
  return Object.entries(KINDS).flatMap(([name, kind]) => {
    const { types = [] }: Field = NODE_FIELDS[name as keyof typeof KINDS]
    if (!(types as readonly string[]).includes(node.type)) return []
    const value: unknown = node[name as keyof typeof KINDS]
    const path = `nodes[${index}].${name}`
    const ids = Array.isArray(value) ? value.map((id, at) => [id, `${path}[${at}]`]) : [[value, path]]
    return ids.flatMap(([id, path]) => (typeof id === 'string' && id !== '' ? [{ kind, id, path }] : []))
  })
}

/**
 * Permissions required to reference resources in a definition; they are not checked when the definition is executed.
 * Agents are checked at each turn instead, for the principal that started the work.
 */
const REFERENCE_ACTIONS: Record<string, string> = {
  tool: 'tools:CallTool',
  orchestration: 'orchestrations:StartRun',
  decider: 'deciders:CreateDecision',
}
export const REFERENCE_PERMISSIONS = Object.values(REFERENCE_ACTIONS)

/**
 * Checks the permissions required to reference resources.
 * @throws FORBIDDEN
 */
export async function requireReferencePermissions(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  project: string,
  references: readonly { kind: string; id: string }[],
): Promise<void> {
  for (const [name, ofKind] of Map.groupBy(references, ({ kind }) => kind)) {
    const action = REFERENCE_ACTIONS[name]
    if (action === undefined) continue
    const kind = kinds.get(name)
    const ids = [...new Set(ofKind.map(({ id }) => id))]
    const rows: readonly KindRow[] = await tx.any(kind.sql`
      select ${kind.columns} from ${sql.identifier([kind.table])} t
      where t.id = any(${sql.array(ids, 'text')}) and t.project_id = ${project}`)
    const known = new Map(rows.map(row => [row.id, row]))
    // A shared or missing resource is treated as a resource of the project.
    for (const id of ids) allow(action, { kind, row: known.get(id) ?? { id, project_id: project } })
  }
}

/**
 * Checks the permissions required by the references of nodes.
 * @throws FORBIDDEN
 */
export const requireNodePermissions = (
  context: Pick<Context, 'tx' | 'allow'>,
  project: string,
  nodes: readonly Node[],
): Promise<void> => requireReferencePermissions(context, project, nodes.flatMap(referencesOf))

/** Returns the IDs of resources that the project owns or that are shared with it. */
export async function listAccessibleIds(
  db: Queryable,
  name: string,
  project: string,
  ids: readonly string[],
): Promise<readonly string[]> {
  const kind = kinds.get(name)
  const possible = [...new Set(ids)].filter(id => isIdOf(kind, id))
  if (possible.length === 0) return []
  const visible = name === 'orchestration' ? sql.fragment`and t.managed_by is null` : sql.fragment``
  const own = await db.anyFirst(idStatement`
    select t.id from ${sql.identifier([kind.table])} t
    where t.id = any(${sql.array(possible, 'text')}) and t.project_id = ${project} ${visible}`)
  const others = possible.filter(id => !own.includes(id))
  const granting = others.length > 0 ? grantSourceOf(name) : undefined
  return granting ? [...own, ...(await granting.among(db, name, project, others))] : own
}
