"""How do flipper length, body mass and bill length of three penguin species go together?

Reads penguins.csv from the current folder; leaves output/summary.csv and output/bill_vs_flipper.png.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
import matplotlib.pyplot as plt

output = Path("output")
output.mkdir(exist_ok=True)

penguins = pd.read_csv("penguins.csv").dropna(subset=["bill_length_mm", "flipper_length_mm", "body_mass_g"])

summary = penguins.groupby("species").agg(
    count=("species", "size"),
    bill_mm=("bill_length_mm", "mean"),
    flipper_mm=("flipper_length_mm", "mean"),
    mass_g=("body_mass_g", "mean"),
)
# Per species: how many grams heavier for each millimetre of flipper.
summary["g_per_mm"] = [
    np.polyfit(group["flipper_length_mm"], group["body_mass_g"], 1)[0] for _, group in penguins.groupby("species")
]
summary = summary.round(1)
summary.to_csv(output / "summary.csv")

figure, axes = plt.subplots(figsize=(7, 5))
for species, group in penguins.groupby("species"):
    points = axes.scatter(group["flipper_length_mm"], group["bill_length_mm"], s=14, alpha=0.7, label=species)
    slope, intercept = np.polyfit(group["flipper_length_mm"], group["bill_length_mm"], 1)
    ends = np.array([group["flipper_length_mm"].min(), group["flipper_length_mm"].max()])
    axes.plot(ends, slope * ends + intercept, color=points.get_facecolor()[0], alpha=1)
axes.set_xlabel("flipper length (mm)")
axes.set_ylabel("bill length (mm)")
axes.set_title("Palmer penguins")
axes.legend()
figure.tight_layout()
figure.savefig(output / "bill_vs_flipper.png", dpi=120)

print(f"{len(penguins)} penguins")
print(summary.to_string())
