import { Counter, Histogram } from 'prom-client'

/**
 * Instruments with names of OpenTelemetry. /metrics shows them as its Prometheus exporter does: dots become underscores, the
 * unit is appended, and counters end in `_total`.
 */

/** Endings of names in /metrics by unit (UCUM). A unit in braces, such as `{token}`, has none. */
const UNITS: Readonly<Record<string, string>> = { s: '_seconds', By: '_bytes', usd: '_usd' }

type Declared<Attribute extends string> = {
  name: string
  unit: string
  help: string
  attributes: readonly Attribute[]
}

type Underscored<Name extends string> = Name extends `${infer Head}.${infer Rest}`
  ? `${Head}_${Underscored<Rest>}`
  : Name

type Instrument = { name: string; unit: string }

/** Declared instruments by name in /metrics. */
const instruments = new Map<string, Instrument>()

/** Names of attributes by label. */
const attributeNames = new Map<string, string>()

/** Returns the label of an attribute. */
export function labelOf<Name extends string>(attribute: Name): Underscored<Name> {
  const label = attribute.replaceAll('.', '_') as Underscored<Name>
  attributeNames.set(label, attribute)
  return label
}

function configurationOf<Attribute extends string>({ name, unit, help, attributes }: Declared<Attribute>, ending = '') {
  const shown = `${name.replaceAll('.', '_')}${UNITS[unit] ?? ''}${ending}`
  instruments.set(shown, { name, unit })
  return { name: shown, help, labelNames: attributes.map(attribute => labelOf(attribute)), registers: [] }
}

/** Declares a counter under its name of OpenTelemetry. */
export const counter = <Attribute extends string>(declared: Declared<Attribute>): Counter<Underscored<Attribute>> =>
  new Counter(configurationOf(declared, '_total'))

/** Declares a histogram under its name of OpenTelemetry. */
export const histogram = <Attribute extends string>(
  declared: Declared<Attribute> & { buckets: number[] },
): Histogram<Underscored<Attribute>> => new Histogram({ ...configurationOf(declared), buckets: declared.buckets })

/** Returns the attribute of a label. */
export const attributeOf = (label: string): string => attributeNames.get(label) ?? label

/**
 * Returns name and unit in OpenTelemetry of a metric of /metrics: those declared, or the name in /metrics with dots and without
 * the endings.
 */
export function instrumentOf(shown: string): Instrument {
  const base = shown.replace(/_total$/, '')
  const [unit, ending] = Object.entries(UNITS).find(each => base.endsWith(each[1])) ?? ['', '']
  const name = base.slice(0, base.length - ending.length).replaceAll('_', '.')
  return instruments.get(shown) ?? { name, unit }
}
