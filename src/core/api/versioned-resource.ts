import { isDeepStrictEqual } from 'node:util'
import type { Tx } from '../db/writer.ts'
import type { Caller } from '../iam/caller.ts'
import { effectiveAuthor } from './authors.ts'
import { type Kind, pickFields, type Values } from './kind.ts'
import type { Context } from './operation.ts'
import { madeBy, type VersionAuthor, type VersionedRow, type versionArchive } from './version-archive.ts'

/** What a restore needs of the operation that it is. */
export type RestoreContext<Row> = Pick<Context, 'tx' | 'services' | 'allow' | 'caller' | 'audit'> & { resource: Row }

/**
 * How rows of a kind are written whose configuration has versions: what a row is configured with is archived under its
 * number, and another configuration is the next version.
 * @param declaration.fields the configuration: what a version keeps
 * @param declaration.same whether two configurations are one version; default whether they are equal
 * @param declaration.read what is restored of what a version kept; default as it is. Raises what cannot be read today.
 * @param declaration.check raises what refuses to restore a configuration that differs
 * @param declaration.changed follows a change, in its transaction; a version is archived after it
 */
export function versionedResource<Row extends VersionedRow, Config extends object>(declaration: {
  kind: Kind<Row, any>
  archive: Pick<ReturnType<typeof versionArchive>, 'owner' | 'insert' | 'get'>
  fields: readonly (keyof Config & keyof Row & string)[]
  same?: (left: Config, right: Config) => boolean
  read?: (kept: Config) => Config
  check?: (context: RestoreContext<Row>, project: string, config: Config, stored: Config) => unknown
  changed?: (tx: Tx, row: Row, stored: Row, making: VersionAuthor) => unknown
}) {
  const { kind, archive, fields, same = isDeepStrictEqual, read = kept => kept, check, changed } = declaration

  const configOf = (row: Row): Config => pickFields(row, fields) as Config

  /** Archives the configuration of a row under its number. */
  const keep = (tx: Tx, row: Row, { created_by, label = null }: Omit<VersionAuthor, 'author'>): Promise<unknown> =>
    archive.insert(tx, {
      [archive.owner]: row.id,
      version: row.version,
      config: configOf(row) as Record<string, unknown>,
      label,
      created_by,
      author: row.author,
    })

  /** Writes changes of a row that the caller holds, and the next version when `isNext`. */
  async function write(
    tx: Tx,
    stored: Row,
    changes: Values<Row>,
    making: VersionAuthor,
    isNext: boolean,
  ): Promise<Row> {
    const row = await kind.update(tx, stored.id, isNext ? { ...changes, version: stored.version + 1 } : changes)
    await changed?.(tx, row, stored, making)
    if (isNext) await keep(tx, row, making)
    return row
  }

  /** Writes changes of a row that the caller holds. */
  function change(tx: Tx, stored: Row, changes: Values<Row>, making: VersionAuthor): Promise<Row> {
    const isNext = !same(configOf(stored), configOf({ ...stored, ...changes }))
    const acts = effectiveAuthor(changes).some(name => isNext || !(fields as readonly string[]).includes(name))
    return write(tx, stored, acts ? { ...changes, author: making.author } : changes, making, isNext)
  }

  return {
    configOf,
    keep,
    change,

    /** Adds a row, whose configuration has been checked, with its first version. */
    async insert(tx: Tx, values: Values<Row>, making: VersionAuthor): Promise<Row> {
      const row = await kind.insert(tx, { ...values, author: making.author, version: 1 })
      await keep(tx, row, making)
      return row
    },

    /**
     * Writes the configuration of an earlier version as the next one, under the lock of the row, unless it is what the row has.
     * @throws RESOURCE_NOT_FOUND, and what refuses the configuration today
     */
    async restore(
      context: RestoreContext<Row>,
      number: number,
      label: string | undefined = `restored from v${number}`,
    ): Promise<Row> {
      const { tx, caller, audit } = context
      const stored = await kind.lock(tx, context.resource.id)
      const kept = await archive.get(tx, stored.id, number)
      const config = read(kept.config as Config)
      const before = configOf(stored)
      if (same(before, config)) return stored
      await check?.(context, stored.project_id as string, config, before)
      const changes = kind.changes(stored, { ...stored, ...config })
      const row = await change(tx, stored, changes, madeBy(caller, label))
      audit.detail.version = row.version
      tx.emit(kind, 'updated', row)
      return row
    },

    /** Makes the caller the author of a row that the caller holds: the next version, with the same configuration. */
    adopt: (tx: Tx, stored: Row, caller: Caller): Promise<Row> => {
      const making = madeBy(caller, 'adopted')
      return write(tx, stored, { author: making.author } as Values<Row>, making, true)
    },
  }
}
