import { isDeepStrictEqual } from 'node:util'
import type { Tx } from '../db/writer.ts'
import type { Caller } from '../iam/caller.ts'
import { behaviourColumns } from './authors.ts'
import { type Kind, pickFields, type Values } from './kind.ts'
import type { Context } from './operation.ts'
import { type VersionAuthor, type VersionedRow, type versionArchive, versionAuthor } from './version-archive.ts'

/** The operation context required by a restore. */
export type RestoreContext<Row> = Pick<Context, 'tx' | 'services' | 'allow' | 'caller' | 'audit'> & { resource: Row }

/**
 * Returns the writes of a kind whose configuration is versioned: each changed configuration is archived as the next version.
 * @param declaration.fields fields of the configuration
 * @param declaration.same whether two configurations are the same version; default whether they are equal
 * @param declaration.read converts a stored configuration to the current form; default unchanged. Raises if it cannot.
 * @param declaration.check raises the refusal to restore a different configuration
 * @param declaration.changed hook after a change, in its transaction, before the version is archived
 */
export function versionedResource<Row extends VersionedRow, Config extends object>(declaration: {
  kind: Kind<Row, any>
  archive: Pick<ReturnType<typeof versionArchive>, 'owner' | 'insert' | 'get'>
  fields: readonly (keyof Config & keyof Row & string)[]
  same?: (left: Config, right: Config) => boolean
  read?: (config: Config) => Config
  check?: (context: RestoreContext<Row>, project: string, config: Config, stored: Config) => unknown
  changed?: (tx: Tx, row: Row, stored: Row, by: VersionAuthor) => unknown
}) {
  const { kind, archive, fields, same = isDeepStrictEqual, read = config => config, check, changed } = declaration

  const configOf = (row: Row): Config => pickFields(row, fields) as Config

  /** Archives the configuration of a row under its version number. */
  const keep = (tx: Tx, row: Row, { created_by, label = null }: Omit<VersionAuthor, 'author'>): Promise<unknown> =>
    archive.insert(tx, {
      [archive.owner]: row.id,
      version: row.version,
      config: configOf(row) as Record<string, unknown>,
      label,
      created_by,
      author: row.author,
    })

  /** Updates a row locked by the caller, and archives the next version if `isNext`. */
  async function write(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor, isNext: boolean): Promise<Row> {
    const row = await kind.update(tx, stored.id, isNext ? { ...changes, version: stored.version + 1 } : changes)
    await changed?.(tx, row, stored, by)
    if (isNext) await keep(tx, row, by)
    return row
  }

  /** Updates a row locked by the caller, and archives the next version if the configuration changed. */
  function change(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor): Promise<Row> {
    const isNext = !same(configOf(stored), configOf({ ...stored, ...changes }))
    const acts = behaviourColumns(changes).some(name => isNext || !(fields as readonly string[]).includes(name))
    return write(tx, stored, acts ? { ...changes, author: by.author } : changes, by, isNext)
  }

  return {
    configOf,
    keep,
    change,

    /** Inserts a row with a validated configuration, and its first version. */
    async insert(tx: Tx, values: Values<Row>, by: VersionAuthor): Promise<Row> {
      const row = await kind.insert(tx, { ...values, author: by.author, version: 1 })
      await keep(tx, row, by)
      return row
    },

    /**
     * Restores the configuration of an earlier version as the next version, under the row lock, unless it is unchanged.
     * @throws RESOURCE_NOT_FOUND, and the refusals of `read` and `check`
     */
    async restore(
      context: RestoreContext<Row>,
      number: number,
      label: string | undefined = `restored from v${number}`,
    ): Promise<Row> {
      const { tx, caller, audit } = context
      const stored = await kind.lock(tx, context.resource.id)
      const version = await archive.get(tx, stored.id, number)
      const config = read(version.config as Config)
      const before = configOf(stored)
      if (same(before, config)) return stored
      await check?.(context, stored.project_id as string, config, before)
      const changes = kind.changes(stored, { ...stored, ...config })
      const row = await change(tx, stored, changes, versionAuthor(caller, label))
      audit.detail.version = row.version
      tx.emit(kind, 'updated', row)
      return row
    },

    /** Makes the caller the author of a locked row, as the next version with the same configuration. */
    adopt: (tx: Tx, stored: Row, caller: Caller): Promise<Row> => {
      const by = versionAuthor(caller, 'adopted')
      return write(tx, stored, { author: by.author } as Values<Row>, by, true)
    },
  }
}
