/**
 * Words of a text for searches, the same for indexing and for queries. Text is normalized to NFKC, which also folds width,
 * invisible characters are removed, and words hyphenated at the end of a line are joined.
 */

/** Letters of scripts written without spaces between words; Hangul too, whose words carry particles. */
const UNSPACED = String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}\u30fc\u3006]`
const UNSPACED_LETTER = String.raw`[${UNSPACED}&&[\p{L}\p{Nl}]]`
const WORD = new RegExp(`(?<run>(?:${UNSPACED_LETTER}\\p{M}*)+)|[[\\p{L}\\p{M}\\p{N}]--${UNSPACED_LETTER}]+`, 'gv')
const CLUSTER = /[^\p{M}]\p{M}*/gu

/** Soft hyphens, zero-width characters, direction marks, variation selectors and the Arabic elongation. */
const INVISIBLE =
  /\u034f|[\u00ad\u0640\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]|[\ufe00-\ufe0f]/g
/** A hyphen at the end of a line between a letter and a small letter. */
const LINE_END_HYPHEN = /(?<=\p{L})[-\u2010\u00ad][ \t]*\r?\n[ \t]*(?=\p{Ll})/gu
/** Stands for a removed line-end hyphen. A private character: no letter, and rare in texts. */
const JOINT = '\ue0f0'

/** Maximum length of a word; longer runs of letters and digits are data. */
const MAX_WORD = 128
/** Limits of words that are joined to one. */
const MAX_PARTS = 4
const MAX_JOINED = 40

const HYPHENS = /^[-\u2010_'\u2019]$/
const ASCII = /^[\0-\x7f]*$/

/** Returns a text in the form in which its words are compared, except for letter case. */
export function normalizeText(text: string): string {
  if (ASCII.test(text) && !text.includes('-')) return text
  return text.normalize('NFKC').replace(LINE_END_HYPHEN, JOINT).replace(INVISIBLE, '')
}

/** A word in lower case, or a run of a script without spaces. */
export type Word = {
  text: string
  /** Letters of a run, with their marks; null for a word. */
  letters: readonly string[] | null
  /** Parts of a word that was hyphenated at the end of a line. */
  parts: readonly string[]
  /** Characters since the previous word. */
  gap: string
}

/** Returns the words of a normalized text. */
export function wordsOf(text: string): Word[] {
  const words: Word[] = []
  let end = 0
  for (const match of text.matchAll(WORD)) {
    const gap = text.slice(end, match.index)
    end = match.index + match[0].length
    const isRun = match.groups?.run !== undefined
    const lower = (isRun ? match[0] : match[0].slice(0, MAX_WORD)).toLowerCase()
    const previous = words.at(-1)
    if (gap === JOINT && previous && !previous.letters && !isRun && previous.parts.length < MAX_PARTS) {
      const parts = previous.parts.length > 0 ? previous.parts : [previous.text]
      words[words.length - 1] = {
        ...previous,
        text: (previous.text + lower).slice(0, MAX_WORD),
        parts: [...parts, lower],
      }
    } else {
      words.push({ text: lower, letters: isRun ? (lower.match(CLUSTER) ?? []) : null, parts: [], gap })
    }
  }
  return words
}

/**
 * Returns the words at `from` as one word if they are a compound with hyphens, such as `e-mail` and `PPR-9087`, or an
 * abbreviation with dots; null otherwise. `length` is the number of its words.
 */
export function compoundAt(words: readonly Word[], from: number): { text: string; length: number } | null {
  const isPart = (word: Word | undefined, joins: (word: Word) => boolean) =>
    word !== undefined && !word.letters && joins(word)
  const hasHyphen = ({ gap }: Word) => HYPHENS.test(gap)
  const isInitial = ({ text, gap }: Word) => text.length === 1 && gap === '.'
  const joins = isPart(words[from + 1], hasHyphen) ? hasHyphen : words[from].text.length === 1 ? isInitial : null
  if (!joins || words[from].letters || (from > 0 && joins(words[from]))) return null
  let to = from + 1
  while (to - from <= MAX_PARTS && isPart(words[to], joins)) to++
  const length = to - from
  if (length < 2 || length > MAX_PARTS) return null
  const text = words
    .slice(from, to)
    .map(word => word.text)
    .join('')
  return text.length <= MAX_JOINED ? { text, length } : null
}

const MARKED = /([\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{Script=Arabic}\p{Script=Hebrew}])\p{M}+/gu
const LETTERS: Record<string, string> = {
  ß: 'ss',
  æ: 'ae',
  œ: 'oe',
  ø: 'o',
  đ: 'd',
  ð: 'd',
  þ: 'th',
  ł: 'l',
  ħ: 'h',
  ı: 'i',
  ς: 'σ',
  ء: '',
  ٱ: 'ا',
  ى: 'ي',
  ی: 'ي',
  ک: 'ك',
  ة: 'ه',
}
/** Zeros of the decimal digits that are found as ASCII digits too. */
for (const zero of [0x660, 0x6f0, 0x966, 0xe50])
  for (let digit = 0; digit < 10; digit++) LETTERS[String.fromCodePoint(zero + digit)] = String(digit)
const FOLDED = new RegExp(`[${Object.keys(LETTERS).join('')}]`, 'gu')

/** Returns a word without accents, ligatures and vowel signs; null if it has none. */
export function foldWord(word: string): string | null {
  if (ASCII.test(word)) return null
  const folded = word
    .normalize('NFD')
    .replace(MARKED, '$1')
    .replace(FOLDED, letter => LETTERS[letter])
    .normalize('NFC')
  return folded === word || folded === '' ? null : folded
}

/** Text search configurations of PostgreSQL for scripts with one main language. */
const SCRIPTS: [RegExp, string][] = [
  [/\p{Script=Arabic}/u, 'arabic'],
  [/\p{Script=Cyrillic}/u, 'russian'],
  [/\p{Script=Greek}/u, 'greek'],
  [/\p{Script=Devanagari}/u, 'hindi'],
  [/\p{Script=Armenian}/u, 'armenian'],
  [/\p{Script=Tamil}/u, 'tamil'],
]

/** Returns the configuration for the script of a word; null if its script has many languages or none. */
export function scriptConfig(word: string): string | null {
  if (ASCII.test(word)) return null
  return SCRIPTS.find(([script]) => script.test(word))?.[1] ?? null
}
