import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'

/** Saved views of a user in a project. */
export const MAX_VIEWS = 100

const MAX_PARAMETERS = 30

const SavedViewQuery = z
  .record(z.string().min(1).max(64), z.string().max(2048))
  .refine(query => Object.keys(query).length <= MAX_PARAMETERS, `must have at most ${MAX_PARAMETERS} parameters`)
  .describe('Filters of the view: the parameters of its address, by name')
  .meta({ id: 'SavedViewQuery', example: { status: 'failed', time: 'day' } })

const fields = {
  view: z
    .string()
    .regex(/^[a-z][a-z0-9-]{0,63}$/)
    .describe('View of the console, as in its address: `traces`, `sessions`'),
  name: z.string().trim().min(1).max(100).describe('Name, unique among the saved views of the user for this view'),
  query: SavedViewQuery,
}

// With a project: only users have saved views, who are bound to none.
const example = {
  project_id: 'proj_01k5p3vd7r9hj2x8m4qcw6tz0e',
  view: 'traces',
  name: 'Failed today',
  query: { status: 'failed', time: 'day' },
}

export const SavedView = record('SavedView', {
  user_id: z.string().describe('ID of the user to whom the saved view belongs'),
  ...fields,
})

export const SavedViewInput = createBody('SavedViewInput', fields, ['view', 'name', 'query'], example)

export const SavedViewPatch = patchBody(
  'SavedViewPatch',
  { name: fields.name, query: fields.query },
  { name: 'Failed this week', query: { status: 'failed', time: 'week' } },
)

export const savedViewKind = kind({
  name: 'saved_view',
  prefix: 'view',
  table: 'saved_views',
  counted: false,
  record: SavedView,
  listed: ['id', 'view', 'name', 'updated_at'],
  references: [{ kind: 'user', column: 'user_id', on_delete: 'cascade' }],
  unique: { saved_views_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})

export type SavedViewRow = z.output<typeof savedViewKind.row>
