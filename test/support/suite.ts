/**
 * Makes an object before the tests of a suite, such as an application, a project or a server, and closes it after them:
 * later ones first, after the hooks that the suite declares itself. The result has the properties of the object
 * from then on, so that helpers of the suite can refer to it. It is not the object itself: compare properties, not results.
 */
export function forSuite<T extends object>(make: () => T | Promise<T>): T {
  let made: T | undefined
  const current = (): T => {
    if (!made) throw new Error('not made yet: objects of a suite exist in its hooks and tests')
    return made
  }
  before(async function () {
    const value = await make()
    // Properties do not describe these, so that comparisons would pass for any content.
    if (!isPlain(value)) throw new TypeError('an object of a suite must not be an array, collection, date or function')
    made = value
    closeAfter(this.test?.parent as Mocha.Suite, value)
  })
  return new Proxy({} as T, {
    get(_, property) {
      const value: unknown = Reflect.get(current(), property)
      // Methods of classes read private fields, which the proxy does not have.
      return typeof value === 'function' && !Object.hasOwn(current(), property) ? value.bind(current()) : value
    },
    set: (_, property, value) => Reflect.set(current(), property, value),
    has: (_, property) => Reflect.has(current(), property),
    ownKeys: () => Reflect.ownKeys(current()),
    getOwnPropertyDescriptor(_, property) {
      const descriptor = Reflect.getOwnPropertyDescriptor(current(), property)
      return descriptor && { ...descriptor, configurable: true }
    },
    getPrototypeOf: () => Reflect.getPrototypeOf(current()),
  })
}

const isPlain = (value: object): boolean =>
  typeof value === 'object' && ![Array, Map, Set, Date, Uint8Array].some(type => value instanceof type)

const open = new WeakMap<Mocha.Suite, object[]>()

function closeAfter(suite: Mocha.Suite, value: object): void {
  const values = open.get(suite) ?? []
  values.push(value)
  if (open.has(suite)) return
  open.set(suite, values)
  suite.afterAll('close', async () => {
    const failures: unknown[] = []
    for (const each of values.reverse())
      try {
        await (each as { close?(): unknown }).close?.()
      } catch (error) {
        failures.push(error)
      }
    if (failures.length > 0) throw new AggregateError(failures, 'objects of the suite cannot be closed')
  })
}
