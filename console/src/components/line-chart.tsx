import { Box, Group, Text } from '@mantine/core'
import { useCallback, useMemo, useRef, useState } from 'react'
import UPlot from 'uplot'
import { dayText, hourText, type PlotTheme, usePlot, useShade } from './plot.ts'

/** Values of a line; null where there is none. */
export type Line = {
  name: string
  values: (number | null)[]
  /** Index of its color. */
  color: 0 | 1
  /** Whether the values are of an earlier period: the line is dashed. */
  isBefore: boolean
}

const HEIGHT = 180
const COLORS = ['indigo', 'orange'] as const
const PADDING_SECONDS = 1800
const DAY_SECONDS = 86_400

/** Positions of values between gaps, which no line shows. */
const isolated = (values: Line['values']): number[] =>
  values.flatMap((value, index) =>
    value !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null ? [index] : [],
  )

/** Lines over hours or days, with the values at the pointer, which charts of a page share. */
export default function LineChart({
  times,
  lines,
  format,
}: {
  /** Starts of the hours or days, in seconds. */
  times: number[]
  lines: Line[]
  format: (value: number) => string
}) {
  const ref = useRef<HTMLDivElement>(null)
  const shade = useShade()
  const [pointed, setPointed] = useState<number | null>(null)
  const isDaily = times[1] - times[0] >= DAY_SECONDS
  const textOf = isDaily ? dayText : hourText
  const data = useMemo(() => [times, ...lines.map(({ values }) => values)] as UPlot.AlignedData, [times, lines])
  const options = useCallback(
    ({ color, shade, axis }: PlotTheme): Omit<UPlot.Options, 'width' | 'height'> => ({
      padding: [12, 16, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: 'lines' } },
      ...(isDaily && { tzDate: seconds => UPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC') }),
      scales: {
        x: { range: (_, min, max) => [min - PADDING_SECONDS, max + PADDING_SECONDS] },
        y: { range: (_, _min, max) => [0, max > 0 ? max * 1.1 : 1] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 110,
          values: (_, splits) => splits.map(textOf),
        },
        { ...axis, size: 72, values: (_, splits) => splits.map(format) },
      ],
      series: [
        {},
        ...lines.map(line => ({
          stroke: color(`--mantine-color-${COLORS[line.color]}-${shade}`),
          width: line.isBefore ? 1 : 2,
          ...(line.isBefore && { dash: [4, 4] }),
          points: { show: false, filter: isolated(line.values), size: 5 },
        })),
      ],
      hooks: { setCursor: [({ cursor }) => setPointed(cursor.idx ?? null)] },
    }),
    [lines, format, isDaily, textOf],
  )
  usePlot(ref, HEIGHT, data, options)
  return (
    <Box aria-hidden>
      <Box ref={ref} mih={HEIGHT} />
      <Group gap="md" mih={24}>
        {lines.map(({ name, values, color, isBefore }) => {
          const value = pointed === null ? null : values[pointed]
          return (
            <Group gap={6} key={name}>
              <Box
                w={14}
                h={0}
                style={{
                  borderTop: `${isBefore ? '1px dashed' : '3px solid'} var(--mantine-color-${COLORS[color]}-${shade})`,
                }}
              />
              <Text size="sm">
                {name} {value == null ? '' : format(value)}
              </Text>
            </Group>
          )
        })}
        {pointed !== null && (
          <Text size="sm" c="dimmed">
            {textOf(times[pointed])}
          </Text>
        )}
      </Group>
    </Box>
  )
}
