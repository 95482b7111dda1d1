import { z } from 'zod'
import { Author } from '#core/api/authors.ts'
import { kind, selectList, type Values } from '#core/api/kind.ts'
import { createBody, patchBody, projectField, record } from '#core/api/record.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { versionLabel } from '#core/resources/version.ts'
import { versioned } from '#core/resources/versioned.ts'
import type { Tx } from '#core/writes/writer.ts'
import { A2aFace } from '#execution/agents/a2a-face.ts'
import { comparableGraph, isSameText } from './definition.ts'
import { EdgeShape, NodeShape } from './fields.ts'
import { deleteUnmarked } from './store.ts'

export { type Edge, type GraphDefinition, NODE_TYPES, type Node, type NodeRetry, type NodeType } from './definition.ts'

const anObject = z.record(z.string(), z.unknown())

const fields = {
  name: z.string().trim().min(1).max(255).describe('Display name'),
  description: z.string().max(2000).nullable().describe('Description of the orchestration'),
  nodes: z.array(NodeShape).describe('Nodes of the graph. At most 500.'),
  edges: z.array(EdgeShape).describe('Edges of the graph. At most 2,000.'),
  state_schema: anObject.nullable().describe('JSON Schema of the state of runs. Documentation only; not enforced.'),
  input_schema: anObject.nullable().describe('JSON Schema (draft 2020-12) of the input of a run'),
  a2a: A2aFace.nullable().describe('Service to clients of the A2A protocol; null for none. Replaced as a whole.'),
}

export const Orchestration = record('Orchestration', {
  ...fields,
  version: z.int().describe('Number of the current version, starting at 1'),
})

export const OrchestrationInput = createBody(
  'OrchestrationInput',
  { ...fields, version_label: versionLabel },
  ['name', 'nodes', 'edges'],
  {
    name: 'Refund',
    nodes: [
      {
        id: 'look_up',
        type: 'tool',
        tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e',
        input_mapping: { order_id: { var: 'input.order_id' } },
      },
      { id: 'decide', type: 'human', prompt: 'May this order be refunded?' },
    ],
    edges: [{ from: 'look_up', to: 'decide' }],
  },
)

export const OrchestrationPatch = patchBody('OrchestrationPatch', { ...fields, version_label: versionLabel })

/** Body of a validation without a write. */
export const ValidateGraphInput = z
  .strictObject({
    project_id: projectField.describe('Project in which references are looked up'),
    nodes: fields.nodes.optional(),
    edges: fields.edges.optional(),
    state_schema: fields.state_schema.optional(),
    input_schema: fields.input_schema.optional(),
  })
  .meta({
    id: 'OrchestrationValidateInput',
    example: { nodes: [{ id: 'look_up', type: 'tool', tool_id: 'tool_01k5p3vd7r9hj2x8m4qcw6tz0e' }], edges: [] },
  })

const Finding = z
  .object({
    code: z.string(),
    path: z.string().describe('Path in the definition'),
    message: z.string(),
  })
  .meta({ id: 'Finding' })

export const GraphValidation = z
  .object({
    valid: z.boolean().describe('Whether the graph has no problems'),
    problems: z.array(Finding).describe('Problems that prevent a write'),
    warnings: z.array(Finding).describe('Likely mistakes; they do not prevent a write'),
  })
  .meta({ id: 'OrchestrationValidation' })

const hidden = { managed_by: z.string().nullable(), author: Author }
const Row = Orchestration.extend(hidden)
const orchestrationRow = sql.type(Row)

const declared = kind({
  name: 'orchestration',
  prefix: 'orch',
  table: 'orchestrations',
  notFound: 'ORCHESTRATION_NOT_FOUND',
  missing: 'ORCHESTRATION_NOT_FOUND',
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Orchestration,
  hidden,
  events: ['created', 'updated', 'deleted'],
  /** Paths and bodies cannot address orchestrations managed by another module. */
  find: (db, id, lock = false) =>
    db.maybeOne(orchestrationRow`
      select ${selectList(Object.keys(Row.shape))} from orchestrations t
      where t.id = ${id} and t.managed_by is null ${lock ? sql.fragment`for update of t` : sql.fragment``}`),
})
export type OrchestrationRow = z.output<typeof Row>

/** Versioned fields of an orchestration. */
export const graphFields = ['nodes', 'edges', 'state_schema', 'input_schema'] as const

/** Condition that an orchestration `t` is not deleted: its runs may outlive it for a while. */
export const notDeleted = sql.fragment`t.managed_by is distinct from 'deletion'`

export const orchestrationKind = {
  ...declared,
  /** Refers to managed orchestrations too, but to none that is deleted: no run starts after a delete. */
  reference: async (db: Queryable, id: string, projectId: string): Promise<OrchestrationRow | null> =>
    db.maybeOne(orchestrationRow`
      select ${selectList(Object.keys(Row.shape))} from orchestrations t
      where t.id = ${id} and t.project_id = ${projectId} and ${notDeleted} for key share of t`),
  /** An orchestration that a hook marked as deleted is removed later. */
  async remove(tx: Tx, row: OrchestrationRow): Promise<void> {
    await deleteUnmarked(tx, row.id)
    tx.emit(declared, 'deleted', row)
  },
  /** Detects reordered keys: the keys of a state_mapping apply in order. */
  changes(before: OrchestrationRow, after: OrchestrationRow): Values<OrchestrationRow> {
    const reordered = graphFields.filter(name => !isSameText(before[name], after[name]))
    const changes = reordered.map(name => [name, after[name]])
    return { ...declared.changes(before, after), ...Object.fromEntries(changes) }
  },
}

/** A change in behaviour creates a version. */
export const orchestrationVersions = versioned({
  kind: orchestrationKind,
  prefix: 'orch_ver',
  fields: graphFields,
  comparable: comparableGraph,
})
