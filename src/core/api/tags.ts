import { z } from 'zod'
import { raise, raiseInvalid } from '../base/errors.ts'
import type { Caller } from '../iam/caller.ts'
import type { Tx } from '../writes/writer.ts'
import { type Kind, type KindRow, withArticle } from './kind.ts'
import { itemOperation, type Operation } from './operation.ts'
import { TagBag, type Tags } from './record.ts'

const MAX_TAGS = 50
const RESERVED = 'system.'

const key = z.string().min(1).max(128)
const value = z.string().max(256)

/** Reports reserved keys and an excess of keys in tags from a caller. */
function checkBag(bag: Record<string, unknown>, context: z.core.$RefinementCtx): void {
  for (const name of Object.keys(bag)) {
    if (name.startsWith(RESERVED))
      context.addIssue({
        code: 'custom',
        params: { code: 'RESERVED_TAG_KEY' },
        path: [name],
        message: `must not start with ${RESERVED}, which is reserved for the platform`,
      })
  }
  if (Object.keys(bag).length > MAX_TAGS)
    context.addIssue({ code: 'custom', message: `must have at most ${MAX_TAGS} keys`, path: [] })
}

/** Tags from a caller, in the field `tags` of a body or as the body of a PUT. */
export const TagInput = z
  .record(key, value)
  .superRefine(checkBag)
  .meta({ id: 'TagInput', example: { team: 'desk' } })

/** Tags to merge; null removes a key. */
const TagPatch = z
  .record(key, value.nullable())
  .superRefine(checkBag)
  .meta({ id: 'TagPatch', example: { team: 'desk', shift: null } })

/** Returns the tags after a PUT: the tags sent and the stored platform tags. */
export const replacedTags = (stored: Tags, sent: Tags): Tags => ({
  ...Object.fromEntries(Object.entries(stored).filter(([name]) => name.startsWith(RESERVED))),
  ...sent,
})

/** Returns the tags after a PATCH. Raises VALIDATION_FAILED if there are too many keys. */
function mergedTags(stored: Tags, sent: Record<string, string | null>): Tags {
  const merged = Object.fromEntries(
    Object.entries({ ...stored, ...sent }).filter((entry): entry is [string, string] => entry[1] !== null),
  )
  if (Object.keys(merged).filter(name => !name.startsWith(RESERVED)).length > MAX_TAGS)
    raiseInvalid({ code: 'INVALID_VALUE', path: '', message: `must have at most ${MAX_TAGS} keys after the merge` })
  return merged
}

/**
 * Returns the operations GET, PUT and PATCH of `<path>/tags`. A write locks the row before reading it, requires the action
 * with both the stored and the resulting tags, and emits `event` with the record.
 * @param declaration.path path of the resource itself, for example `/actors/{actor_id}`
 * @param declaration.param path parameter with the id; default `<kind>_id`
 * @param declaration.read action of the GET
 * @param declaration.write action of the PUT and the PATCH
 * @param declaration.setTags stores the tags and returns the row in the form of `kind.find`
 * @param declaration.event default `updated`; null emits no event
 * @param declaration.onChange hook after a change, in the same transaction
 */
export function tagOperations<Row extends KindRow, Event extends string>(
  kind: Kind<Row, Event>,
  declaration: {
    path: string
    param?: string
    /** Name in operation ids; default the kind's. */
    noun?: string
    tag: string
    read: string
    write: string
    setTags(tx: Tx, row: Row, tags: Tags, caller: Caller): Promise<Row>
    event?: NoInfer<Event> | null
    onChange?(tx: Tx, row: Row): void | Promise<void>
  },
): Operation[] {
  const { param, tag, read, write, setTags, event, onChange } = declaration
  const path = `${declaration.path}/tags`
  const noun = kind.name.replaceAll('_', ' ')
  const title =
    declaration.noun ?? kind.name.replace(/(^|_)([a-z])/g, (_match, _gap, letter: string) => letter.toUpperCase())

  const change = async (
    context: { caller: Caller; tx: Tx; resource: Row; allowTags(tags: Tags): void },
    result: (stored: Tags) => Tags,
  ): Promise<Tags> => {
    const { caller, tx, resource } = context
    const row = await kind.find(tx, resource.id, true)
    if (!row) return raise(kind.notFound, { meta: { id: resource.id } })
    const tags = result(row.tags ?? {})
    context.allowTags(tags)
    const changed = await setTags(tx, row, tags, caller)
    if (event !== null) tx.emit(kind, event ?? ('updated' as Event), changed)
    await onChange?.(tx, changed)
    return changed.tags ?? {}
  }

  return [
    itemOperation(kind, {
      id: `get${title}Tags`,
      method: 'get',
      path,
      param,
      summary: `Get tags of ${withArticle(noun)}`,
      description: `Keys with the prefix ${RESERVED} are set by the platform.`,
      tag,
      action: read,
      answers: { 200: TagBag },
      run: async ({ resource }) => resource.tags ?? {},
    }),
    itemOperation(kind, {
      id: `replace${title}Tags`,
      method: 'put',
      path,
      param,
      summary: `Replace tags of ${withArticle(noun)}`,
      description: `Keys with the prefix ${RESERVED} are retained. The action must be allowed with the previous and with the new tags.`,
      tag,
      action: write,
      body: TagInput,
      answers: { 200: TagBag },
      run: context => change(context, stored => replacedTags(stored, context.body)),
    }),
    itemOperation(kind, {
      id: `merge${title}Tags`,
      method: 'patch',
      path,
      param,
      summary: `Merge tags of ${withArticle(noun)}`,
      description:
        'Null removes a key; omitted keys are unchanged. The action must be allowed with the previous and with the new tags.',
      tag,
      action: write,
      body: TagPatch,
      answers: { 200: TagBag },
      run: context => change(context, stored => mergedTags(stored, context.body)),
    }),
  ]
}
