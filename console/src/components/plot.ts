import { useComputedColorScheme } from '@mantine/core'
import { type RefObject, useEffect } from 'react'
import UPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'

/** What a plot is drawn with: the value of a variable of the theme, the shade of its colors, and an axis in its colors. */
export type PlotTheme = { color: (variable: string) => string; shade: number; axis: UPlot.Axis }

const DAY = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short', timeZone: 'UTC' })
const HOUR = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short', hour: 'numeric', minute: '2-digit' })

/** Returns a day in UTC for people. */
export const dayText = (seconds: number): string => DAY.format(seconds * 1000)
/** Returns an hour for people. */
export const hourText = (seconds: number): string => HOUR.format(seconds * 1000)

/** The shade of colors that is legible in a color scheme. */
export const useShade = (): number => (useComputedColorScheme('light') === 'dark' ? 5 : 7)

/** Draws a plot into an element, with its width, and again when `options` or the data change. */
export function usePlot(
  ref: RefObject<HTMLDivElement | null>,
  height: number,
  data: UPlot.AlignedData,
  options: (theme: PlotTheme) => Omit<UPlot.Options, 'width' | 'height'>,
): void {
  const shade = useShade()
  useEffect(() => {
    const target = ref.current
    if (!target) return
    const style = getComputedStyle(target)
    const color = (variable: string) => style.getPropertyValue(variable).trim()
    const axis = {
      stroke: color('--mantine-color-dimmed'),
      font: `12px ${style.fontFamily}`,
      grid: { stroke: color('--mantine-color-default-border'), width: 1 },
      ticks: { show: false },
    }
    const size = () => ({ width: target.clientWidth, height })
    const plot = new UPlot({ ...options({ color, shade, axis }), ...size() }, data, target)
    const resized = new ResizeObserver(() => plot.setSize(size()))
    resized.observe(target)
    return () => {
      resized.disconnect()
      plot.destroy()
    }
  }, [ref, height, shade, data, options])
}
