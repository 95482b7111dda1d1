import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '../db/sql.ts'
import { type Caller, type PrincipalRecord, principalRecord } from '../iam/caller.ts'
import { Author, type AuthoredRow, definitionOf } from './authors.ts'
import { Comparison, changesBetween } from './compare.ts'
import { newId } from './ids.ts'
import { type Kind, selectList, withArticle } from './kind.ts'
import { pageOf, pageResult, textFilter } from './lists.ts'
import { itemOperation, type Operation, type Page } from './operation.ts'
import { noVersion, versionNumber, versionQuery } from './versions.ts'

/** The columns of an archived version; a restore writes `config`. */
export type ArchivedVersion = {
  id: string
  version: number
  config: Record<string, unknown>
  label: string | null
  created_by: string | null
  created_at: string
}

/** The author and label of a version. `created_by` is null for a copy. */
export type VersionAuthor = { created_by: string | null; author: PrincipalRecord | null; label?: string | null }

/** Returns the author of a version created by a request. */
export const versionAuthor = (caller: Caller, label?: string): VersionAuthor => ({
  created_by: caller.user.id,
  author: principalRecord(caller),
  label,
})

/** Returns the author of a version created by cloning a project. */
export const copyAuthor = (caller: Caller): VersionAuthor => ({ created_by: null, author: principalRecord(caller) })

const authorRow = sql.type(z.object({ author: Author }))

/** A row with a current version number. */
export type VersionedRow = AuthoredRow & { version: number }

/**
 * Returns access to the append-only versions of a kind: a table with a unique index on owner and version.
 * @param declaration.owner column with the id of the versioned row
 * @param declaration.read converts a stored configuration to the fields of this release; default unchanged
 */
export function versionArchive<S extends z.ZodObject>(declaration: {
  table: string
  owner: string
  prefix: string
  record: S
  read?: (config: Record<string, unknown>) => object
}) {
  const { owner, prefix, record, read = config => config } = declaration
  type Row = z.output<S> & ArchivedVersion
  const table = sql.identifier([declaration.table])
  const columns = selectList(Object.keys(record.shape))
  const typed = sql.type(record)
  const ownedBy = (id: string) => sql.fragment`${sql.identifier(['t', owner])} = ${id}`

  /** Returns the existing versions among the given numbers, which may exceed the range of the column. */
  const find = (db: Queryable, id: string, versions: readonly number[]): Promise<readonly Row[]> =>
    db.any(typed`
      select ${columns} from ${table} t
      where ${ownedBy(id)} and t.version = any(${sql.array([...versions], 'int8')})`) as never

  /** Returns the author of a version, or null if unknown. */
  async function authorOf(db: Queryable, id: string, number: number): Promise<PrincipalRecord | null> {
    const found = await db.maybeOne(authorRow`
      select t.author from ${table} t where ${ownedBy(id)} and t.version = ${number}`)
    return found?.author ?? null
  }

  return {
    owner,
    find,
    authorOf,

    /** Returns a version. Raises RESOURCE_NOT_FOUND if it does not exist. */
    async get(db: Queryable, id: string, number: number): Promise<Row> {
      const [found] = await find(db, id, [number])
      return found ?? noVersion(id, number)
    },

    /** Returns the definition that limits the permissions of work under a version, default the current one. */
    async definition(db: Queryable, row: Pick<VersionedRow, 'id' | 'version' | 'author'>, version = row.version) {
      const { id } = row
      return definitionOf({ id, author: version === row.version ? row.author : await authorOf(db, id, version) })
    },

    /** Inserts a version. */
    insert(
      db: Queryable,
      version: Omit<Row, 'id' | 'created_at'> & { author: PrincipalRecord | null },
    ): Promise<unknown> {
      const { config, author, ...columns } = version
      const entries = Object.entries({
        ...columns,
        id: newId(prefix),
        config: JSON.stringify(config),
        author: author && JSON.stringify(author),
      })
      const parts = <T>(of: (entry: [string, unknown]) => T) => sql.join(entries.map(of) as never[], sql.fragment`, `)
      return db.query(voidStatement`
        insert into ${table} (${parts(([name]) => sql.identifier([name]))})
        values (${parts(([, value]) => value as string)})`)
    },

    /** Returns a page of versions, newest first; the unique index serves filter and order. */
    list: (db: Queryable, bounds: Page, id: string, label?: string) =>
      pageResult<Row>(
        { db, page: bounds },
        {
          columns,
          from: sql.fragment`${table} t`,
          rows: ownedBy(id),
          filters: [label !== undefined && sql.fragment`t.label = ${label}`],
          time: sql.fragment`t.created_at`,
          order: sql.fragment`t.version desc`,
          key: sql.fragment`t.id`,
          bytes: sql.fragment`octet_length(t.config::text)`,
          present: found => found,
        },
      ),

    /**
     * Returns the differences between two versions; default from the previous to the newest version. Raises
     * RESOURCE_NOT_FOUND if a version does not exist.
     */
    async compare(db: Queryable, row: VersionedRow, range: { from?: number; to?: number }) {
      const to = range.to ?? row.version
      const from = range.from ?? Math.max(1, to - 1)
      const found = new Map((await find(db, row.id, [from, to])).map(version => [version.version, version]))
      const configAt = (number: number) => {
        const version = found.get(number)
        return version ? read(version.config) : noVersion(row.id, number)
      }
      const after = configAt(to)
      // Rows older than the archive have no version before their first archived one.
      if (range.from === undefined && !found.has(from)) return { from: to, to, changes: [] }
      return { from, to, changes: changesBetween(configAt(from), after) }
    },
  }
}

/** Returns the operations that read the versions of a kind: list, compare and get. */
export function versionOperations<Row extends VersionedRow>(
  kind: Kind<Row, any>,
  at: {
    /** Path of the list of the kind. */
    path: string
    tag: string
    record: z.ZodObject
    archive: Pick<ReturnType<typeof versionArchive>, 'list' | 'compare' | 'get'>
  },
): Operation[] {
  const { path, tag, record, archive } = at
  const noun = kind.name.replace(/(^|_)([a-z])/g, (_match, _gap, letter: string) => letter.toUpperCase())
  const words = withArticle(kind.name.replaceAll('_', ' '))
  const module = path.split('/')[1]
  const versions = `${path}/{${kind.name}_id}/versions`
  return [
    itemOperation(kind, {
      id: `list${noun}Versions`,
      method: 'get',
      path: versions,
      summary: `List versions of ${words}`,
      description:
        'Newest first. A page contains at most 16 MiB of configurations; if it is cut, `limit` is the number of versions returned.',
      tag,
      action: `${module}:List${noun}Versions`,
      query: z.object({ label: textFilter.describe('Exact match of `label`') }),
      paged: true,
      answers: { 200: pageOf(record) },
      run: ({ resource, db, page, query }) => archive.list(db, page, resource.id, query.label),
    }),
    itemOperation(kind, {
      id: `compare${noun}Versions`,
      method: 'get',
      path: `${versions}/compare`,
      summary: `Compare two versions of ${words}`,
      description: 'Returns the added, removed and changed fields by path.',
      tag,
      action: `${module}:Get${noun}Version`,
      query: z.object({
        from: versionQuery.describe('Version to compare from. Default: the version before `to`.'),
        to: versionQuery.describe('Version to compare to. Default: the newest version.'),
      }),
      answers: { 200: Comparison },
      run: ({ resource, db, query }) => archive.compare(db, resource, query),
    }),
    itemOperation(kind, {
      id: `get${noun}Version`,
      method: 'get',
      path: `${versions}/{version}`,
      summary: `Get a version of ${words}`,
      description: 'Returns the configuration as of the version.',
      tag,
      action: `${module}:Get${noun}Version`,
      answers: { 200: record },
      run: ({ resource, db, params }) => archive.get(db, resource.id, versionNumber(params.version)),
    }),
  ]
}
