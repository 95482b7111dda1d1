/**
 * Makes an object before the tests of a suite, such as an application, a project or a server, and closes it after them:
 * later ones first, after the hooks that the suite declares itself. The result has the properties of the object
 * from then on, so that helpers of the suite can refer to it.
 */
export function forSuite<T extends object>(make: () => T | Promise<T>): T {
  let made: T | undefined
  const current = (): T => {
    if (!made) throw new Error('not made yet: objects of a suite exist in its hooks and tests')
    return made
  }
  before(async function () {
    const value = await make()
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

const open = new WeakMap<Mocha.Suite, object[]>()

function closeAfter(suite: Mocha.Suite, value: object): void {
  const values = open.get(suite) ?? []
  values.push(value)
  if (open.has(suite)) return
  open.set(suite, values)
  suite.afterAll('close', async () => {
    for (const each of values.reverse()) await (each as { close?(): unknown }).close?.()
  })
}
