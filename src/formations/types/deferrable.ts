import type { JsonObject } from '#core/api/flatten.ts'
import type { Services } from '#core/base/services.ts'
import { joinsTransaction } from './built-in.ts'
import type { BuiltInType, TemplateType } from './model.ts'

/**
 * Whether a property can be set when the resource exists already. Not a property whose reference prevents the deletion of
 * its target: in a cycle the target is deleted first. Guardrails are such references, so nothing is ever usable without the guardrails that it declares.
 */
function isDeferrable(
  { kind, declared, operations, properties, fixed, replaced, writeOnly }: BuiltInType,
  name: string,
): boolean {
  const { update } = operations
  const { changing, translate, together, moving } = declared
  const isFree =
    properties.get(name)?.required === false &&
    !fixed.has(name) &&
    !replaced.has(name) &&
    ![writeOnly, together, moving].some(names => names.includes(name)) &&
    !(translate && name in translate.properties)
  const isBlocking = kind.references.some(
    ({ column, on_delete }) => column === name && (on_delete === 'block' || on_delete === 'force'),
  )
  return isFree && !isBlocking && changing === undefined && update !== null && joinsTransaction(update)
}

/**
 * Returns the properties, of some, without which a resource can be created; they are set by an update. None if the rest is not valid
 * without them.
 */
export async function deferrableProperties(
  services: Services,
  type: TemplateType,
  properties: JsonObject,
  names: readonly string[],
  tenant: string,
): Promise<ReadonlySet<string>> {
  const found = new Set(type.registered ? [] : names.filter(name => isDeferrable(type, name)))
  if (found.size === 0) return found
  const rest = Object.fromEntries(Object.entries(properties).filter(([name]) => !found.has(name)))
  const problems = await type.check(services, rest, { at: '', complete: true, tenant })
  return problems.length > 0 ? new Set() : found
}
