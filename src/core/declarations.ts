/**
 * What the modules of this process declare under one heading: its kinds, its queues, its events. Filled once, by
 * `loadModules`. Reading it before that is a fault of ours, never an empty answer.
 */
export type Declarations<T> = {
  /** The declaration of a name. @throws Error for a name that no module declares */
  get(name: string): T
  /** The same for a name that a caller wrote: undefined when no module declares it. */
  find(name: string): T | undefined
  all(): readonly T[]
  /** @throws Error when a name is declared twice */
  fill(items: readonly T[]): void
}

export function declarations<T>(what: string, nameOf: (item: T) => string): Declarations<T> {
  let byName: Map<string, T> | undefined
  let items: readonly T[] = []
  const loaded = () => byName ?? fail(`${what}: no module has been loaded`)
  return {
    get: name => loaded().get(name) ?? fail(`${what} ${name} is not declared by any module`),
    find: name => loaded().get(name),
    all() {
      loaded()
      return items
    },
    fill(given) {
      const filled = new Map<string, T>()
      for (const item of given) {
        const name = nameOf(item)
        if (filled.has(name)) fail(`${what} ${name} is declared twice`)
        filled.set(name, item)
      }
      byName = filled
      items = given
    },
  }
}

function fail(message: string): never {
  throw new Error(message)
}

/** A place where an earlier area lets later ones join in, such as what a deleted project leaves behind. */
export type ExtensionPoint<T> = {
  name: string
  /** One contribution, for the `extensions` of a module. */
  with(value: T): Extension
  /** Every contribution, in the order of the modules. */
  all(): readonly T[]
  /** The one contribution there may be; undefined without it. @throws Error when there are several */
  only(): T | undefined
}

/** A contribution of one module to an extension point. */
export type Extension = { point: ExtensionPoint<never>; value: unknown }

const contributions = new Map<string, unknown[]>()
let extensionsLoaded = false

export function extensionPoint<T>(name: string): ExtensionPoint<T> {
  const point: ExtensionPoint<T> = {
    name,
    with: value => ({ point: point as ExtensionPoint<never>, value }),
    all() {
      if (!extensionsLoaded) fail(`extension point ${name}: no module has been loaded`)
      return (contributions.get(name) ?? []) as T[]
    },
    only() {
      const found = point.all()
      if (found.length > 1) fail(`extension point ${name} takes one contribution`)
      return found[0]
    },
  }
  return point
}

/** Hands the contributions of the modules to their extension points. */
export function registerExtensions(extensions: readonly Extension[]): void {
  contributions.clear()
  for (const { point, value } of extensions) {
    const known = contributions.get(point.name)
    if (known) known.push(value)
    else contributions.set(point.name, [value])
  }
  extensionsLoaded = true
}
