import { z } from 'zod'
import { Author } from '../../core/api/authors.ts'
import { raise } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { createBody, patchBody, record } from '../../core/api/record.ts'
import { Scorer, Scorers } from './scorers.ts'

/** An eval measures an agent by a dataset: its scorers judge what the agent answers to each item. */

const id = z.string().min(1).max(255)
const share = z.number().min(0).max(1).nullable()

const fields = {
  name: z.string().trim().min(1).max(255).describe('Name, unique in the project'),
  agent_id: id.describe('Agent of the project that is measured'),
  dataset_id: id.describe('Dataset of the project whose items it is asked'),
  scorers: Scorers,
  pass_threshold: share.describe('Least share of scored items that pass for a run to pass; null for no verdict'),
  max_error_rate: share.describe('Largest share of items that may end with an error for a run to pass; null for any'),
  group_by: z
    .string()
    .min(1)
    .max(255)
    .nullable()
    .describe('Key of the metadata of items by whose values results are grouped: texts of at most 255 characters'),
}

export const Eval = record('Eval', {
  ...fields,
  scorers: z.array(Scorer).describe('How answers are scored'),
  revision: z.int().describe('Counts the changes of what a verdict goes by, from 1'),
})

export const EvalInput = createBody('EvalInput', fields, ['name', 'agent_id', 'dataset_id', 'scorers'], {
  name: 'Return answers',
  agent_id: 'agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
  dataset_id: 'dset_01k5p3vd7r9hj2x8m4qcw6tz0e',
  scorers: [{ type: 'exact_match' }],
})

export const EvalPatch = patchBody('EvalPatch', fields)

/** What the verdict of a run goes by. */
export const JUDGED_BY = ['agent_id', 'dataset_id', 'scorers', 'pass_threshold', 'max_error_rate', 'group_by'] as const

export const evalKind = kind({
  name: 'eval',
  prefix: 'eval',
  table: 'evals',
  references: [
    { kind: 'project', column: 'project_id', on_delete: 'cascade' },
    { kind: 'agent', column: 'agent_id', on_delete: 'force' },
    { kind: 'dataset', column: 'dataset_id', on_delete: 'cascade' },
    { kind: 'ai_provider', column: 'ai_provider_ids', many: true, on_delete: 'block' },
  ],
  record: Eval,
  hidden: { ai_provider_ids: z.array(z.string()), inherits_route: z.boolean(), author: Author },
  events: ['created', 'updated', 'deleted'],
  unique: { evals_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type EvalRow = z.output<typeof evalKind.row>
