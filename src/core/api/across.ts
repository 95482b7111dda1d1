import { z } from 'zod'

/**
 * A term of the order of a list: a field of its entries or a value of them, and its direction. IDs, times and numbers compare
 * alike everywhere; other texts are `collated`, which the database compares. A null is the greatest value.
 */
export type OrderTerm = readonly [
  value: string | ((entry: never) => unknown),
  direction: 'asc' | 'desc',
  collated?: 'collated',
]

/** Order of the entries of a list, by values that the response contains. The last term is unique. */
export type ListOrder = readonly OrderTerm[]

export const NEWEST_FIRST: ListOrder = [
  ['created_at', 'desc'],
  ['id', 'desc'],
]

export const BY_NEWEST_ID: ListOrder = [['id', 'desc']]

/** Facts that are read in each cell, with its context, and the response that the first cell makes of them. */
export type SharedRead<Facts = any> = {
  read(context: never): Promise<Facts>
  present(facts: readonly Facts[], context: never): unknown
}

/**
 * How a read over several projects is answered in a deployment with cells: the pages of a list are merged by its order, other
 * facts are read in each cell and presented together. What cannot be merged requires a project there.
 */
export type Across = { order: ListOrder } | SharedRead | { requires: 'project' }

/** Whether a read is answered from all cells. */
export const isAcross = (across: Across | null): across is { order: ListOrder } | SharedRead =>
  across !== null && !('requires' in across)

/** The parameter of a read over several projects. */
export const partial = z
  .boolean()
  .default(false)
  .describe(
    'Whether to answer without the cells that are not available, instead of failing with CELL_UNAVAILABLE. Default false.',
  )

const meta = z
  .object({ missing_cells: z.array(z.string()).describe('Names of the cells whose records are missing') })
  .describe('Only in a response to `partial=true` without the records of some cells')
  .meta({ id: 'PartialResponse' })
  .optional()

/** Returns the schema of a response that may lack the records of some cells. */
export function withMissingCells(schema: z.ZodType): z.ZodType {
  if (!(schema instanceof z.ZodObject)) throw new Error('the response of a read across cells is an object')
  const extended = schema.extend({ meta })
  const facts = schema.meta()
  return facts ? extended.meta(facts) : extended
}
