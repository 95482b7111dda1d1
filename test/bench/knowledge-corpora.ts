import { setImmediate } from 'node:timers/promises'
import { localVector } from '#content/index/embeddings/local.ts'

/**
 * Generated corpora of vectors, the same in every run. Each is a list of rows and a way to search: questions are made as rows
 * are, and are no rows themselves.
 */

export type Corpus = {
  name: string
  rows: Float32Array[]
  /** The text of a row, in corpora that have texts. */
  texts?: string[]
  questions: Float32Array[]
  questionTexts?: string[]
}

export type Random = { uniform(): number; normal(): number }

/** mulberry32, and normal numbers by Box and Muller. */
export function seeded(seed: number): Random {
  let state = seed >>> 0
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = state
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
  return {
    uniform,
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
  }
}

/**
 * `count` rows, with turns of the event loop in between: making a corpus takes minutes on a slow machine, and connections
 * that are kept alive have to be closed by the client before the server closes them.
 */
async function manyOf<T>(count: number, make: (index: number) => T): Promise<T[]> {
  const made: T[] = []
  for (let index = 0; index < count; index++) {
    if (index % 100 === 99) await setImmediate()
    made.push(make(index))
  }
  return made
}

const normalized = (values: Float64Array): Float32Array => {
  const length = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0))
  return Float32Array.from(values, value => value / length)
}

/**
 * Rows around the centres of topics, some close to them and some far, in a space whose coordinates count as `scale` says,
 * moved by `offset`.
 */
async function topical(
  name: string,
  options: { rows: number; questions: number; dimensions: number; topics: number; seed: number },
  scale: (coordinate: number) => number,
  offset: number,
): Promise<Corpus> {
  const { rows, questions, dimensions, topics, seed } = options
  const random = seeded(seed)
  const scales = Float64Array.from({ length: dimensions }, (_, index) => scale(index))
  const scattered = () => scales.map(width => width * random.normal())
  const mean = scattered().map(value => value * offset)
  const centres = Array.from({ length: topics }, scattered)
  const row = () => {
    const centre = centres[Math.floor(random.uniform() * topics)]
    const spread = 0.5 + 1.5 * random.uniform()
    const values = new Float64Array(dimensions)
    for (let index = 0; index < dimensions; index++)
      values[index] = mean[index] + centre[index] + spread * scales[index] * random.normal()
    return normalized(values)
  }
  return { name, rows: await manyOf(rows, row), questions: await manyOf(questions, row) }
}

type Size = { rows: number; questions: number; dimensions: number }

/** Every coordinate counts the same. */
export const isotropic = (size: Size): Promise<Corpus> =>
  topical('isotropic', { ...size, topics: 1000, seed: 1 }, () => 1, 0)

/** Few coordinates hold nearly everything, and every row points into the same half, like vectors of language models. */
export const anisotropic = (size: Size): Promise<Corpus> =>
  topical('anisotropic', { ...size, topics: 1000, seed: 2 }, index => 1 / (index + 1), 1)

/** Nothing is near anything: rows and questions are scattered evenly. No index finds much here, and no search needs it. */
export const structureless = async (size: Size): Promise<Corpus> => {
  const random = seeded(3)
  const row = () => normalized(Float64Array.from({ length: size.dimensions }, random.normal))
  return {
    name: 'structureless',
    rows: await manyOf(size.rows, row),
    questions: await manyOf(size.questions, row),
  }
}

const SYLLABLES =
  'ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu bra cle dri flo gru sta spe tri plo nu'.split(' ')

function vocabulary(random: Random, words: number): string[] {
  const made = new Set<string>()
  while (made.size < words) {
    let word = ''
    for (let left = 2 + Math.floor(random.uniform() * 3); left > 0; left--)
      word += SYLLABLES[Math.floor(random.uniform() * SYLLABLES.length)]
    made.add(word)
  }
  return [...made]
}

/**
 * Texts of about 120 words as the local embedder hashes them: some 800 of the features, so few coordinates of a short
 * question are not zero. Words follow Zipf's law; three in ten belong to the text's topic.
 */
export async function sparse(size: Size): Promise<Corpus> {
  const random = seeded(4)
  const words = vocabulary(random, 20_000)
  const topics = Array.from({ length: 2000 }, () =>
    Array.from({ length: 30 }, () => words[Math.floor(random.uniform() * words.length)]),
  )
  const common = () => words[Math.floor(words.length ** random.uniform()) - 1]
  const text = (length: number) => {
    const topic = topics[Math.floor(random.uniform() * topics.length)]
    return Array.from({ length }, () =>
      random.uniform() < 0.3 ? topic[Math.floor(random.uniform() * topic.length)] : common(),
    ).join(' ')
  }
  const texts = await manyOf(size.rows, () => text(80 + Math.floor(random.uniform() * 80)))
  const questionTexts = await manyOf(size.questions, () => text(12))
  return {
    name: 'sparse hashed',
    texts,
    questionTexts,
    rows: await manyOf(texts.length, index => localVector(texts[index], size.dimensions)),
    questions: questionTexts.map(each => localVector(each, size.dimensions)),
  }
}

/** Words of a fact. */
const FACT_WORDS = 12

/** The same with texts as long as facts are. */
export async function facts(size: Size): Promise<Corpus> {
  const corpus = await sparse(size)
  const texts = (corpus.texts as string[]).map(text => text.split(' ').slice(0, FACT_WORDS).join(' '))
  return { ...corpus, texts, rows: await manyOf(texts.length, index => localVector(texts[index], size.dimensions)) }
}
