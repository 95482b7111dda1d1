import { Code, ScrollArea, SimpleGrid, Stack, Text } from '@mantine/core'
import { useMemo } from 'react'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { Value } from './value.tsx'

/** Words between the first and the last difference above which texts are shown without marks: comparing takes their product. */
const WORDS = 1500
/** Equal words that are shown before and after a difference. */
const CONTEXT = 40

type Piece = { words: string[]; isCommon: boolean }

const wordsOf = (text: string): string[] => text.match(/\S+\s*|\s+/g) ?? []

/** Joins words, those next to each other in one piece. */
function piecesOf(words: string[], common: ReadonlySet<number>): Piece[] {
  const pieces: Piece[] = []
  words.forEach((word, index) => {
    const isCommon = common.has(index)
    const last = pieces.at(-1)
    if (last?.isCommon === isCommon) last.words.push(word)
    else pieces.push({ words: [word], isCommon })
  })
  return pieces
}

/** Returns how many words two texts have in common at their beginning, or from their ends. */
function equalWords(left: string[], right: string[], max: number, isEnd = false): number {
  const at = (words: string[], index: number) => (isEnd ? words[words.length - 1 - index] : words[index])
  let count = 0
  while (count < max && at(left, count) === at(right, count)) count++
  return count
}

/** Splits two texts into what both have in the same order (the longest common subsequence of words) and the rest. */
function compareTexts(before: string, after: string): [Piece[], Piece[]] | null {
  const [left, right] = [wordsOf(before), wordsOf(after)]
  const shorter = Math.min(left.length, right.length)
  const start = equalWords(left, right, shorter)
  const end = equalWords(left, right, shorter - start, true)
  const [rows, columns] = [left.length - start - end, right.length - start - end]
  if (rows > WORDS || columns > WORDS) return null
  const width = columns + 1
  const lengths = new Uint16Array((rows + 1) * width)
  for (let i = rows - 1; i >= 0; i--)
    for (let j = columns - 1; j >= 0; j--)
      lengths[i * width + j] =
        left[start + i] === right[start + j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1])
  const outside = (words: string[]) =>
    new Set(words.flatMap((_, index) => (index < start || index >= words.length - end ? [index] : [])))
  const [inLeft, inRight] = [outside(left), outside(right)]
  for (let i = 0, j = 0; i < rows && j < columns; ) {
    if (left[start + i] === right[start + j]) {
      inLeft.add(start + i++)
      inRight.add(start + j++)
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++
    else j++
  }
  return [piecesOf(left, inLeft), piecesOf(right, inRight)]
}

/** The text of words that both texts have: of a long one only the words next to differences. */
function commonText(words: string[], isFirst: boolean, isLast: boolean): string {
  const [head, tail] = [isFirst ? 0 : CONTEXT, isLast ? 0 : CONTEXT]
  const left = words.length - head - tail
  if ((isFirst && isLast) || left <= 2 * CONTEXT) return words.join('')
  return `${words.slice(0, head).join('')}${strings.compare.equal(left)}${words.slice(words.length - tail).join('')}`
}

/** Two texts next to each other, with the words marked in which they differ. */
export function TextDifference({
  before,
  after,
  labels = [strings.agents.before, strings.agents.after],
}: {
  before: string | null
  after: string | null
  labels?: [before: string, after: string]
}) {
  const compared = useMemo(
    () => (before !== null && after !== null ? compareTexts(visible(before), visible(after)) : null),
    [before, after],
  )
  const sides = [before, after].map((text, side) => ({ text, label: labels[side], pieces: compared?.[side] }))
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }}>
      {sides.map(({ text, label, pieces }, side) => (
        <Stack gap={2} key={label} miw={0}>
          <Text size="sm" c="dimmed">
            {label}
          </Text>
          {text === null && <Text c="dimmed">{strings.none}</Text>}
          {text !== null && !pieces && <Value value={text} label={label} />}
          {pieces && (
            <ScrollArea.Autosize
              mah={420}
              type="auto"
              viewportProps={{ tabIndex: 0, role: 'region', 'aria-label': label }}
            >
              <Code block className="wrap">
                {pieces.map(({ words, isCommon }, index) =>
                  isCommon ? (
                    commonText(words, index === 0, index === pieces.length - 1)
                  ) : (
                    <DifferencePiece key={index} text={words.join('')} isBefore={side === 0} />
                  ),
                )}
              </Code>
            </ScrollArea.Autosize>
          )}
        </Stack>
      ))}
    </SimpleGrid>
  )
}

function DifferencePiece({ text, isBefore }: { text: string; isBefore: boolean }) {
  return isBefore ? <del className="removed">{text}</del> : <ins className="added">{text}</ins>
}
