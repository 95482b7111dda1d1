import { z } from 'zod'
import { type Queryable, sql, voidStatement } from '../db/sql.ts'
import { type Caller, type PrincipalRecord, principalRecord } from '../iam/caller.ts'
import { Author, type Authored, definitionOf } from './authors.ts'
import { Comparison, changesBetween } from './compare.ts'
import { newId } from './ids.ts'
import { type Kind, selectList } from './kind.ts'
import { pageOf, pageResult, textFilter } from './lists.ts'
import { itemOperation, type Operation, type Page } from './operation.ts'
import { noVersion, versionNumber, versionQuery } from './versions.ts'

/** What every archive keeps of a version; `config` is what a restore writes. */
export type ArchivedVersion = {
  id: string
  version: number
  config: Record<string, unknown>
  label: string | null
  created_by: string | null
  created_at: string
}

/** By whom a version is made, and what it is called; a copy is by the author who copies, and names no user. */
export type VersionAuthor = { created_by: string | null; author: PrincipalRecord | null; label?: string | null }

/** A version that a request makes. */
export const madeBy = (caller: Caller, label?: string): VersionAuthor => ({
  created_by: caller.user.id,
  author: principalRecord(caller),
  label,
})

/** A version that a clone of a project makes. */
export const copiedBy = (caller: Caller): VersionAuthor => ({ created_by: null, author: principalRecord(caller) })

const authored = sql.type(z.object({ author: Author }))

/** A row that counts its versions. */
export type VersionedRow = Authored & { version: number }

/**
 * The append-only versions of a kind: a table with a unique index of owner and version.
 * @param declaration.owner column that names the row whose versions these are
 * @param declaration.read what the fields of this release make of a configuration that was kept; default as it is
 */
export function versionArchive<S extends z.ZodObject>(declaration: {
  table: string
  owner: string
  prefix: string
  record: S
  read?: (kept: Record<string, unknown>) => object
}) {
  const { owner, prefix, record, read = config => config } = declaration
  type Row = z.output<S> & ArchivedVersion
  const table = sql.identifier([declaration.table])
  const columns = selectList(Object.keys(record.shape))
  const typed = sql.type(record)
  const ownedBy = (id: string) => sql.fragment`${sql.identifier(['t', owner])} = ${id}`

  /** Those of the numbered versions that exist; callers may name more than a version can have. */
  const find = (db: Queryable, id: string, versions: readonly number[]): Promise<readonly Row[]> =>
    db.any(typed`
      select ${columns} from ${table} t
      where ${ownedBy(id)} and t.version = any(${sql.array([...versions], 'int8')})`) as never

  /** The author of a version; null where it is not known. */
  async function authorOf(db: Queryable, id: string, number: number): Promise<PrincipalRecord | null> {
    const found = await db.maybeOne(authored`
      select t.author from ${table} t where ${ownedBy(id)} and t.version = ${number}`)
    return found?.author ?? null
  }

  return {
    owner,
    find,
    authorOf,

    /** One version. Raises RESOURCE_NOT_FOUND for a number that does not exist. */
    async get(db: Queryable, id: string, number: number): Promise<Row> {
      const [found] = await find(db, id, [number])
      return found ?? noVersion(id, number)
    },

    /** A version of a row, default the live one, as what narrows the rights of what is made of it. */
    async definition(db: Queryable, row: Pick<VersionedRow, 'id' | 'version' | 'author'>, version = row.version) {
      const { id } = row
      return definitionOf({ id, author: version === row.version ? row.author : await authorOf(db, id, version) })
    },

    /** Adds a version. */
    insert(db: Queryable, made: Omit<Row, 'id' | 'created_at'> & { author: PrincipalRecord | null }): Promise<unknown> {
      const { config, author, ...columns } = made
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

    /** A page of versions, newest first: the unique index serves filter and order. */
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
     * What changed from one version to another; without numbers, from the one before the newest to the newest. Raises
     * RESOURCE_NOT_FOUND for a number that does not exist.
     */
    async compare(db: Queryable, row: VersionedRow, asked: { from?: number; to?: number }) {
      const to = asked.to ?? row.version
      const from = asked.from ?? Math.max(1, to - 1)
      const found = new Map((await find(db, row.id, [from, to])).map(version => [version.version, version]))
      const configAt = (number: number) => {
        const version = found.get(number)
        return version ? read(version.config) : noVersion(row.id, number)
      }
      const after = configAt(to)
      // What is older than its archive has nothing before its first version there.
      if (asked.from === undefined && !found.has(from)) return { from: to, to, changes: [] }
      return { from, to, changes: changesBetween(configAt(from), after) }
    },
  }
}

/** The operations that read the versions of a kind: list, compare and one by its number. */
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
  const words = `${/^[aeio]/.test(kind.name) ? 'an' : 'a'} ${kind.name.replaceAll('_', ' ')}`
  const module = path.split('/')[1]
  const versions = `${path}/{${kind.name}_id}/versions`
  return [
    itemOperation(kind, {
      id: `list${noun}Versions`,
      method: 'get',
      path: versions,
      summary: `List the versions of ${words}, newest first`,
      description: 'A page ends before 16 MiB of configurations: `limit` says how many it was cut to.',
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
      description: 'Lists what was added, removed and changed from one to the other, by the paths of fields.',
      tag,
      action: `${module}:Get${noun}Version`,
      query: z.object({
        from: versionQuery.describe('Default: the version before `to`'),
        to: versionQuery.describe(
          `Default: the newest version, which is the configuration of the ${kind.name.replaceAll('_', ' ')}`,
        ),
      }),
      answers: { 200: Comparison },
      run: ({ resource, db, query }) => archive.compare(db, resource, query),
    }),
    itemOperation(kind, {
      id: `get${noun}Version`,
      method: 'get',
      path: `${versions}/{version}`,
      summary: `Read a version of ${words}`,
      description: 'Answers the configuration as the version keeps it, whatever was changed since.',
      tag,
      action: `${module}:Get${noun}Version`,
      answers: { 200: record },
      run: ({ resource, db, params }) => archive.get(db, resource.id, versionNumber(params.version)),
    }),
  ]
}
