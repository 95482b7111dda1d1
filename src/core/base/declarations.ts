/**
 * Registry of the declarations of all modules of one type: kinds, queues or events. Filled once, by `loadModules`;
 * reading it earlier throws instead of returning nothing.
 */
export type Declarations<T> = {
  /** Returns the declaration of a name. @throws Error if no module declares it */
  get(name: string): T
  /** Returns the declaration of a name given by a caller, undefined if no module declares it. */
  find(name: string): T | undefined
  all(): readonly T[]
  /** @throws Error for a duplicate name */
  fill(items: readonly T[]): void
}

/** Creates a registry; `what` is the type of declaration in error messages. */
export function declarations<T>(what: string, nameOf: (item: T) => string): Declarations<T> {
  let byName: Map<string, T> | undefined
  let items: readonly T[] = []
  const loaded = () => byName ?? fail(`${what}: modules are not loaded yet`)
  return {
    get: name => loaded().get(name) ?? fail(`${what} ${name} is not declared by any module`),
    find: name => loaded().get(name),
    all() {
      loaded()
      return items
    },
    fill(declared) {
      const index = new Map<string, T>()
      for (const item of declared) {
        const name = nameOf(item)
        if (index.has(name)) fail(`${what} ${name} is declared twice`)
        index.set(name, item)
      }
      byName = index
      items = declared
    },
  }
}

function fail(message: string): never {
  throw new Error(message)
}

/** The name of a point, the folder of src that declares it, and its purpose: a verb phrase about a contribution. */
type PointNames = { name: string; folder: string; description: string }

/** A point at which later modules register hooks of an earlier one, for example for the deletion of a project. */
export type ExtensionPoint<T> = PointNames & {
  /** Creates a contribution, for the `extensions` of a module. */
  with(value: T): Extension
  /** Returns all contributions, in the order of the modules. */
  all(): readonly T[]
  /** Returns the single contribution, undefined without one. @throws Error if there are several */
  only(): T | undefined
}

/** A contribution of one module to an extension point. */
export type Extension = { point: ExtensionPoint<never>; value: unknown }

type Contributions = { point: ExtensionPoint<never>; contributors: Set<string>; values: unknown[] }

const contributions = new Map<string, Contributions>()
let extensionsLoaded = false

/** Declares an extension point, by which an earlier folder reaches a later one. Elsewhere a plain call does. */
export function extensionPoint<T>(names: PointNames): ExtensionPoint<T> {
  const { name } = names
  const point: ExtensionPoint<T> = {
    ...names,
    with: value => ({ point: point as ExtensionPoint<never>, value }),
    all() {
      if (!extensionsLoaded) fail(`extension point ${name}: modules are not loaded yet`)
      return (contributions.get(name)?.values ?? []) as T[]
    },
    only() {
      const found = point.all()
      if (found.length > 1) fail(`extension point ${name} has more than one contribution`)
      return found[0]
    },
  }
  return point
}

/**
 * Registers the contributions of all modules at their extension points.
 * @throws Error for two points of one name
 */
export function registerExtensions(modules: readonly { name: string; extensions?: readonly Extension[] }[]): void {
  contributions.clear()
  for (const module of modules) {
    for (const { point, value } of module.extensions ?? []) {
      const known = contributions.get(point.name) ?? { point, contributors: new Set(), values: [] }
      if (known.point !== point) fail(`extension point ${point.name} is declared twice`)
      known.contributors.add(module.name)
      known.values.push(value)
      contributions.set(point.name, known)
    }
  }
  extensionsLoaded = true
}

/** Returns the extension points that have contributions, by name, and the modules that contribute. */
export const listExtensionPoints = (): (PointNames & { contributors: string[] })[] =>
  [...contributions.values()]
    .map(({ point: { name, folder, description }, contributors }) => ({
      name,
      folder,
      description,
      contributors: [...contributors],
    }))
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
