import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import type { Tx } from '../db/write.ts'
import { declarations } from '../declarations.ts'
import type { ErrorCode } from './errors.ts'

/** How a row of one kind names a row of another. */
export type Reference = {
  kind: string
  column: string
  /** The column is a text[] of ids. */
  many?: boolean
  /** Text expression over the row: the wire's field that names the id given. Default: the column. */
  field?: (id: Fragment) => Fragment
  /**
   * `block`: the target cannot be deleted while this row lives, nor by force. `force`: blocks unless forced, then deleted
   * with it. `follow`: deleted with it, forced or not; counted beside what blocks.
   */
  on_delete: 'block' | 'force' | 'follow' | 'cascade' | 'null'
}

/**
 * What a resource is to the rest of the house: how to find it by id, which project it belongs to, how policies
 * name it. Declared once by the module that owns it; known to core as data.
 */
export type Kind<Row extends KindRow = KindRow> = {
  /** Singular snake_case; also the type segment of resource names. */
  name: string
  plural: string
  prefix: string
  table: string
  /** Global resources have `*` as project. */
  global: boolean
  /** Carries tags that policy conditions see. */
  tags: boolean
  /** The code that answers a path whose id names nothing. */
  notFound: ErrorCode
  /** The code that answers a body that names nothing. */
  missing: ErrorCode
  /** Rows that a project shows as its dependents when it is deleted; false for what goes silently (identity, 3.5). */
  counted: boolean
  /** Ids that were not made by `newId`: rows that ship with the deployment. */
  fixedIds: readonly string[]
  references: Reference[]
  /** Reads one row by id, in the shape `present` takes. `lock` takes the row's lock. */
  find(db: Queryable, id: string, lock?: boolean): Promise<Row | null>
  /** The record as the wire shows it. */
  present(row: Row): object
  /** The normalized path under which policies name the row too (identity, 7); null while it has none. */
  path?: (row: Row) => string | null
  /** Resource names are those of the parent when the kind has none of its own (deliveries: their webhook). */
  authorize?: (row: Row) => { type: string; id: string }
  /** Deletes one row with what follows from it, its delete event first of all; for forced deletes of what it names. */
  remove?: (tx: Tx, row: Row) => Promise<void>
  /** The same for many rows at once, of kinds without a delete event. */
  removeAll?: (tx: Tx, ids: readonly string[]) => Promise<void>
}

export type KindRow = { id: string; project_id: string | null; tags?: Record<string, string> | null }

/** Every kind of the process. */
export const kinds = declarations<Kind>('kind', ({ name }) => name)

type Declaration<Row extends KindRow> = {
  name: string
  plural?: string
  prefix: string
  table: string
  global?: boolean
  tags?: boolean
  notFound?: ErrorCode
  missing?: ErrorCode
  counted?: boolean
  fixedIds?: readonly string[]
  references?: Reference[]
  /** Columns of a row; default every column of the table. May hold expressions over the alias `t`. */
  columns?: Fragment
  find?: Kind<Row>['find']
  present: (row: Row) => object
  path?: (row: Row) => string | null
  authorize?: (row: Row) => { type: string; id: string }
  remove?: (tx: Tx, row: Row) => Promise<void>
  removeAll?: Kind<Row>['removeAll']
}

/** Declares a kind. */
export function kind<Row extends KindRow>(declaration: Declaration<Row>): Kind<Row> {
  const columns = declaration.columns ?? sql.fragment`t.*`
  const table = sql.identifier([declaration.table])
  const made: Kind<Row> = {
    name: declaration.name,
    plural: declaration.plural ?? `${declaration.name}s`,
    prefix: declaration.prefix,
    table: declaration.table,
    global: declaration.global ?? false,
    tags: declaration.tags ?? false,
    notFound: declaration.notFound ?? 'RESOURCE_NOT_FOUND',
    missing: declaration.missing ?? 'RESOURCE_NOT_FOUND',
    counted: declaration.counted ?? true,
    fixedIds: declaration.fixedIds ?? [],
    references: declaration.references ?? [],
    find:
      declaration.find ??
      (async (db, id, lock = false) =>
        (await db.maybeOne(
          sql.unsafe`select ${columns} from ${table} t where t.id = ${id} ${lock ? sql.fragment`for update of t` : sql.fragment``}`,
        )) as Row | null),
    present: declaration.present,
    path: declaration.path,
    authorize: declaration.authorize,
    remove: declaration.remove,
    removeAll: declaration.removeAll,
  }
  return made
}

/** A type of resource that has no rows: policies name all of it, `*` (identity, 7). No kind of the registry. */
export const kindWithoutRows = (name: string): Kind => ({
  name,
  plural: name,
  prefix: '',
  table: '',
  global: false,
  tags: false,
  notFound: 'RESOURCE_NOT_FOUND',
  missing: 'RESOURCE_NOT_FOUND',
  counted: false,
  fixedIds: [],
  references: [],
  find: async () => null,
  present: row => row,
})

const ID = /^[a-z]+(?:_[a-z]+)*_[0-9a-hjkmnp-tv-z]{26}$/

/** Whether a string can be an id of a kind; anything else is answered like an id that does not exist, without a query. */
export const isIdOf = (target: Pick<Kind, 'prefix' | 'fixedIds'>, id: string): boolean =>
  (ID.test(id) && id.startsWith(`${target.prefix}_`) && id.length === target.prefix.length + 27) ||
  target.fixedIds.includes(id)

/** The name policies use: `srn:<project>:<type>:<id>` (identity, 7). */
export const srn = (projectId: string | null, type: string, id: string): string =>
  `srn:${projectId ?? '*'}:${type}:${id}`
